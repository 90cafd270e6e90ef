"""`save(wait=False)` at the end of a process, and in one that is forked meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Event

import pytest

import retrotape as rt
from retrotape.files import background

SOON = 60.0  # seconds after which a test gives up

PROGRAM = """
import sys, os, tensorflow as tf, retrotape as rt
from retrotape.files import background
from threading import Event, Timer
x = tf.constant(3.0)
with rt.Tape() as tape:
    y = x * x
go = Event()
background.submit("(gate)", lambda: int(go.wait(60)))
saving = [tape.save(os.path.join(sys.argv[1], f"{number}.tape"), x=x, y=y, wait=False) for number in range(3)]
"""


def run_to_the_end(tmp_path: Path, rest: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + rest, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_the_interpreter_waits_at_its_end(tmp_path: Path):
    done = run_to_the_end(tmp_path, "Timer(0.2, go.set).start()\nprint(os.listdir(sys.argv[1]))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert [float(rt.load(tmp_path / f"{number}.tape").gradient("y", "x")) for number in range(3)] == [6.0] * 3


def test_an_error_at_the_end_is_a_warning_too(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    done = run_to_the_end(tmp_path / "folder", "os.rmdir(sys.argv[1])\ngo.set()")
    assert done.returncode == 0
    assert done.stderr.count("BackgroundSaveWarning") == 3, done.stderr


def test_an_interrupt_leaves_the_others_and_no_half_file(tmp_path: Path):
    rest = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it\n"
        "Timer(0.2, go.set).start()\nos.kill(os.getpid(), signal.SIGINT)\nEvent().wait(60)"
    )
    done = run_to_the_end(tmp_path, rest)
    assert "KeyboardInterrupt" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["0.tape", "1.tape", "2.tape"]
    assert float(rt.load(tmp_path / "2.tape").gradient("y", "x")) == 6.0


def in_a_forked_process(check: Callable[[], bool]) -> int:
    """Return the exit status of a process that checks something: 0 if it holds, 1 if not, 2 for an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads in a process that forks
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_process_has_a_thread_of_its_own():
    """Only the library's part: TensorFlow itself does not survive a fork."""
    background.submit("(first)", lambda: 1).result(SOON)
    assert in_a_forked_process(lambda: background.submit("(second)", lambda: 2).result(SOON) == 2) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_what_the_parent_saves_raises_in_a_forked_process():
    """Instead of waiting for ever, also for one of which a later save replaces the file."""
    go, begun = Event(), Event()

    def slow() -> int:
        begun.set()
        return int(go.wait(SOON))

    done = background.submit("(done)", lambda: 7)
    assert done.result(SOON) == 7
    running = [background.submit(key, slow) for key in ("memory://me:secret@host/a", "(later)", "(later)")]
    assert begun.wait(SOON)
    status = in_a_forked_process(lambda: all(map(is_left_to_the_parent, running)) and done.result(0) == 7)
    assert status == 0
    go.set()
    assert [future.result(SOON) for future in running] == [1, 1, 1]


def is_left_to_the_parent(future: Future[int]) -> bool:
    text = str(future.exception(1))
    wanted = (
        "when this process was forked, and the parent process saves it. Ask for the result there",
        "tape (later):",
    )
    return wanted[0] in text and (wanted[1] in text or "tape memory://…@host/a:" in text)
