"""Tapes, paths and functions that fail, also while another driver works on the same folder."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import retrotape as rt
from distribute.conftest import CHUNK
from distribute.making import assert_same_bits, plain_sum
from retrotape.distribute import _partial as partial
from retrotape.distribute import _paths, _worker, farm
from retrotape.errors import CorruptTapeError, FarmError


def parts(work: Path) -> list[Path]:
    return sorted(work.glob("*.part"))


def test_a_failure_of_another_driver_does_not_replace_a_result(tapes, tmp_path):
    """One driver is stopped in a tape, which then fails; meanwhile another one finishes the same chunk."""
    inside, finished = threading.Event(), threading.Event()

    def failing(path, **options):
        inside.set()
        assert finished.wait(60)
        raise MemoryError("for the moment")

    def slow_driver():
        return rt.farm.backward(tapes[:8], "loss", "w", work=tmp_path, chunk=CHUNK, on_error="continue")

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as other:
        load = _worker.load_tape
        here = threading.get_ident()
        patch.setattr(
            _worker, "load_tape", lambda *a, **o: (load if threading.get_ident() == here else failing)(*a, **o)
        )
        slow = other.submit(slow_driver)
        assert inside.wait(60)
        rt.farm.backward(tapes[:4], "loss", "w", work=tmp_path, chunk=CHUNK)
        finished.set()
        total = slow.result()
    expected = plain_sum(tapes[:4], CHUNK, ("w",))
    assert_same_bits(total, expected)
    assert total.count == 4
    assert list(total.failed) == tapes[4:8]  # the first chunk is the other driver's, where none failed
    assert_same_bits(rt.farm.backward(tapes[:4], "loss", "w", work=tmp_path, chunk=CHUNK), expected)


def test_failures_are_those_of_what_is_summed(own, tmp_path, monkeypatch):
    """Between the computation and the sum, another driver replaces a result with failures by one with others."""
    Path(own[2]).write_text("hello")
    options = {"chunk": CHUNK, "on_error": "continue", "work": tmp_path / "work"}
    read = farm.contents

    def contents(done):
        path = done.paths[0]
        found = partial.read(path)
        sums = [{**one, "tapes": one["tapes"][:-1]} for one in found["sums"]]
        partial.write(path, {**found, "sums": sums, "failed": {**found["failed"], 3: "OSError: later"}})
        return read(done)

    monkeypatch.setattr(farm, "contents", contents)
    total = rt.farm.backward(own, "loss", "w", **options)
    assert total.count == 16
    assert list(total.failed) == own[2:4]


def test_a_result_with_failures_does_not_count_where_the_first_is_to_stop(tapes, tmp_path, monkeypatch):
    rt.farm.backward(tapes[:4], "loss", "w", work=tmp_path)
    content = partial.read(str(parts(tmp_path)[0]))
    partial.write(str(parts(tmp_path)[0]), {**content, "failed": {1: "OSError: no"}})
    monkeypatch.setattr(partial, "is_whole", lambda path: True)  # it was when this driver looked
    with pytest.raises(FarmError, match=r"0001.tape failed: OSError: no\. To leave out tapes that fail"):
        rt.farm.backward(tapes[:4], "loss", "w", work=tmp_path)


def test_results_are_read_by_many_threads(tapes, monkeypatch):
    found = rt.farm.map(tapes[:3], lambda tape: float(tape["loss"]), chunk=1)
    expected = list(found)
    assert len(set(expected)) == 3
    other = found._last

    class Raced(rt.farm.Results):
        _last = property(lambda self: other, lambda self, last: None)  # another thread replaces it at once

    found.__class__ = Raced
    assert list(found) == expected


def test_a_tape_that_appears_while_the_farm_runs_fails(own, tmp_path, monkeypatch):
    late = tmp_path / "late.tape"
    load = _worker.load_tape

    def load_and_copy(path, **options):
        shutil.copy2(own[1], late)
        return load(path, **options)

    monkeypatch.setattr(_worker, "load_tape", load_and_copy)
    total = rt.farm.backward([own[0], str(late)], "loss", "w", on_error="continue", work=tmp_path / "work")
    assert total.failed == {str(late): f"FileNotFoundError: There was no {str(late)!r} when the farm began."}
    assert total.count == 1
    assert rt.farm.backward([own[0], str(late)], "loss", "w", work=tmp_path / "work").count == 2


def test_a_path_that_cannot_be_examined_is_the_failure_of_that_tape(own, monkeypatch):
    def no_stamp(path):
        if path == own[1]:
            raise PermissionError("not for you")
        return stamp(path)

    stamp = _paths.stamp
    monkeypatch.setattr(_paths, "stamp", no_stamp)
    total = rt.farm.backward(own[:3], "loss", "w", on_error="continue")
    assert (total.count, total.failed) == (2, {own[1]: "PermissionError: not for you"})
    with pytest.raises(PermissionError):
        rt.farm.backward(own[:3], "loss", "w")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(own, tmp_path):
    os.mkfifo(tmp_path / "pipe.tape")
    text = f"Cannot read the tape {tmp_path / 'pipe.tape'}: it is neither a file nor a folder"
    with pytest.raises(CorruptTapeError, match=text):
        rt.farm.backward(str(tmp_path / "*.tape"), "loss", "w")
    total = rt.farm.backward(str(tmp_path / "*.tape"), "loss", "w", on_error="continue")
    assert total.count == 18
    assert total.failed[str(tmp_path / "pipe.tape")].startswith(f"CorruptTapeError: {text}")


def test_a_question_that_exits_is_the_failure_of_that_tape(tapes):
    def question(tape: rt.LoadedTape) -> float:
        return sys.exit(3) if float(tape["loss"]) == last else float(tape["loss"])

    last = float(rt.load(tapes[3])["loss"])
    found = rt.farm.map(tapes[:4], question, on_error="continue")
    assert found.failed == {tapes[3]: "SystemExit: 3"}


def test_a_folder_at_a_url_is_refused(tapes):
    with pytest.raises(ValueError, match="work= takes a folder") as raised:
        rt.farm.backward(tapes, "loss", work="s3://bucket/farm")
    assert str(raised.value) == (
        "work= takes a folder of a file system that all workers share, got the URL 's3://bucket/farm': "
        '`work="/shared/farm"`.'
    )
