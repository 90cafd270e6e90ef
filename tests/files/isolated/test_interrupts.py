"""Ctrl-C at any line of an exchange: the next query raises or is right, and never gets the result of another."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrotape.errors import IsolationError
from retrotape.files.isolated import _process, _wire

# Speaks the protocol, and gives back what it was asked.
ECHO = """
import json, sys
def read():
    size = sys.stdin.buffer.read(8)
    return dict(json.loads(sys.stdin.buffer.read(int.from_bytes(size, "little")))["dict"]) if size else None
def write(**fields):
    raw = json.dumps({"dict": [[key, value] for key, value in fields.items()]}).encode()
    sys.stdout.buffer.write(len(raw).to_bytes(8, "little") + raw)
    sys.stdout.buffer.flush()
write(number=read()["number"], confinement=["", "", "", 1, 1.0])
while (asked := read()) is not None:
    write(number=asked["number"], result=asked["args"], warnings=[])
"""


def launch(note, errors):
    return subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)


def interrupted_after(lines: int, function) -> bool:
    """Run a function, with Ctrl-C at the n-th line of the two files; say whether it came so far."""
    files, left, hit = (_process.__file__, _wire.__file__), lines, False

    def trace(frame, event, argument):
        nonlocal left, hit
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                hit = True
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        assert hit
    finally:
        sys.settrace(before)
    return hit


def outcome(function):
    try:
        return function()
    except IsolationError as error:
        return str(error)


def test_every_line_can_be_interrupted(monkeypatch):
    monkeypatch.setattr(_process, "launch", launch)
    with ThreadPoolExecutor(1) as pool:  # Python keeps what a traced thread was handling; let that end with the thread
        tried, answered = pool.submit(interrupt_every_line).result()
    assert tried > 50
    assert 0 < answered < tried


def interrupt_every_line() -> tuple[int, int]:
    """Return how many lines there are, and after how many of them the next query was answered."""
    tried = answered = 0
    for lines in range(1, 1000):
        process = _process.Process("a.tape", 2**20, 30.0, {})
        come_so_far = interrupted_after(lines, lambda process=process: process.ask("first", 1))
        found = outcome(lambda process=process: process.ask("second", 2)[0])
        if found == (2,):
            answered += 1
        else:
            assert found.startswith("This isolated tape can no longer be queried. A query was interrupted. Load")
            assert process._child.poll() is not None
        process.close()
        if not come_so_far:
            break
        tried += 1
    return tried, answered


def test_a_late_result_is_no_result(monkeypatch):
    monkeypatch.setattr(_process, "launch", launch)
    process = _process.Process("a.tape", 2**20, 30.0, {})
    process._child.stdin.write(b"".join(_sent({"number": 1, "args": [1]})))  # asked by nobody who waits
    with pytest.raises(IsolationError, match="sent an invalid message while it answered other, and was stopped"):
        process.ask("other", 2)


def test_a_second_ctrl_c_while_the_first_is_handled(monkeypatch):
    monkeypatch.setattr(_process, "launch", launch)
    process = _process.Process("a.tape", 2**20, 30.0, {})

    def interrupted(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_wire, "receive", interrupted)
        patch.setattr(process, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            process.ask("first", 1)
    assert process._child.poll() is None  # the result is on its way
    with pytest.raises(IsolationError, match=r"can no longer be queried\. A query was interrupted"):
        process.ask("second", 2)
    assert process._child.poll() is not None


def test_a_copy_of_the_process_does_not_read_from_the_same_pipe(monkeypatch):
    monkeypatch.setattr(_process, "launch", launch)
    process = _process.Process("a.tape", 2**20, 30.0, {})
    monkeypatch.setattr(_process.os, "getpid", lambda: -1)
    with pytest.raises(
        IsolationError, match=r"belongs to the process that loaded it, .* Load it here: `rt\.load\('a\.tape', isolate"
    ):
        process.ask("other", 2)
    monkeypatch.undo()
    assert process.ask("other", 2)[0] == (2,)
    process.close()


def _sent(message):
    written = []

    class Sink:
        write = staticmethod(lambda raw: written.append(bytes(raw)))
        flush = staticmethod(lambda: None)

    _wire.send(Sink, message)
    return written
