"""Exactly once: after a kill, with damaged or outdated partial results, with two drivers; and tapes that fail."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import retrotape as rt
from distribute.conftest import CHUNK
from distribute.dying import loaded
from distribute.making import assert_same_bits, plain_sum, record
from helpers.processes import PYTHON
from retrotape.distribute import _job, _partial, _worker
from retrotape.errors import FarmError, NoTapesError, RemoteError

DRIVER = """
import sys
import threading
import retrotape as rt
from retrotape.distribute import _worker

load, loads = _worker.load_tape, 0

def load_or_wait(*args, **options):
    global loads
    loads += 1
    if loads == 11:
        print("half way", flush=True)
        sys.stdin.read()  # until it is killed
    return load(*args, **options)

_worker.load_tape = load_or_wait
rt.farm.backward(sys.argv[2:], "loss", chunk=4, work=sys.argv[1])
"""


def parts(work: Path) -> list[Path]:
    return sorted(work.glob("*.part"))


def test_a_driver_that_was_killed_is_continued(tapes, expected, tmp_path, monkeypatch):
    command = [PYTHON, "-c", DRIVER, str(tmp_path), *tapes]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout.readline() == "half way\n"
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGKILL
    assert len(parts(tmp_path)) == 2
    paths = loaded(monkeypatch)
    assert_same_bits(rt.farm.backward(tapes, "loss", chunk=CHUNK, work=tmp_path), expected)
    assert paths == [Path(path).name for path in tapes[8:]]
    assert_same_bits(rt.farm.backward(tapes, "loss", chunk=CHUNK, work=tmp_path), expected)
    assert len(paths) == 10  # nothing more


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "text"])
def test_a_damaged_partial_result_is_computed_again(tapes, expected, tmp_path, monkeypatch, damage):
    rt.farm.backward(tapes, "loss", chunk=CHUNK, work=tmp_path)
    victim = parts(tmp_path)[2]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    changed = {"flipped": bytes(data), "cut": bytes(data[:-40]), "empty": b"", "text": b"hello"}[damage]
    victim.write_bytes(changed)
    paths = loaded(monkeypatch)
    assert_same_bits(rt.farm.backward(tapes, "loss", chunk=CHUNK, work=tmp_path), expected)
    assert 0 < len(paths) <= CHUNK


@pytest.mark.parametrize("reduce", ["sum", "each"])
def test_the_part_of_another_chunk_is_computed_again(tapes, tmp_path, monkeypatch, reduce):
    """As after a copy that mixed up names: each file is whole by itself."""
    query = {"wrt": "w", "chunk": CHUNK, "work": tmp_path, "reduce": reduce}

    def gradients():
        found = rt.farm.backward(tapes, "loss", **query)
        return [found["w"].numpy().tolist()] if reduce == "sum" else [one["w"].numpy().tolist() for one in found]

    expected = gradients()
    own = parts(tmp_path)
    for one, other in zip(own[:2], own[2:4], strict=True):
        other.write_bytes(one.read_bytes())
    paths = loaded(monkeypatch)
    assert gradients() == expected
    assert 0 < len(paths) <= 2 * CHUNK


def test_the_inputs_of_another_chunk_are_refused(tmp_path):
    for name, number in (("inputs-a.part", 1), ("inputs-b.part", 2)):
        _partial.write(str(tmp_path / name), {"inputs": np.array([number], np.uint8), "failed": {}})
    (tmp_path / "inputs-b.part").write_bytes((tmp_path / "inputs-a.part").read_bytes())
    assert _partial.is_whole(str(tmp_path / "inputs-a.part"))
    assert not _partial.is_whole(str(tmp_path / "inputs-b.part"))


def test_the_next_run_removes_what_killed_ones_left(tapes, tmp_path):
    crash = "import os, sys, retrotape as rt; os.replace = lambda *_: os._exit(9)\n"
    crash += "rt.farm.backward(sys.argv[2:], 'loss', chunk=4, work=sys.argv[1])"
    for _ in range(2):
        subprocess.run([PYTHON, "-c", crash, str(tmp_path), *tapes], check=False)
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    rt.farm.backward(tapes, "loss", chunk=CHUNK, work=tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in parts(tmp_path))


def test_results_that_are_damaged_later_are_not_returned(tapes, tmp_path):
    each = rt.farm.backward(tapes, "loss", "w", reduce="each", chunk=CHUNK, work=tmp_path)
    for path in parts(tmp_path):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FarmError) as raised:
        each[0]
    assert "was removed or damaged since it was written. Call again with the same `work=`" in str(raised.value)


def test_a_tape_that_has_changed_is_asked_again(own, tmp_path, monkeypatch):
    work = tmp_path / "work"
    rt.farm.backward(own, "loss", chunk=CHUNK, work=work)
    tape, names = record(100)
    tape.save(own[5], names)
    paths = loaded(monkeypatch)
    total = rt.farm.backward(own, "loss", chunk=CHUNK, work=work)
    assert paths == [Path(path).name for path in own[4:8]]
    monkeypatch.undo()
    assert_same_bits(total, plain_sum(own, CHUNK))


def test_a_tape_that_changes_meanwhile_is_an_error(own, tmp_path, monkeypatch):
    load = _worker.load_tape

    def load_and_change(path, **options):
        tape = load(path, **options)
        os.utime(path, (0, 0))
        return tape

    monkeypatch.setattr(_worker, "load_tape", load_and_change)
    with pytest.raises(FarmError, match=r"0000.tape' changed while the farm ran\. Call again"):
        rt.farm.backward(own, "loss")


@pytest.mark.parametrize(
    "other",
    [
        {"target": "hidden"},
        {"wrt": ["b"]},
        {"through_updates": True},
        {"load": {"mmap": True}},
        {"reduce": "each"},
        {"chunk": 5},
    ],
    ids=str,
)
def test_another_query_does_not_use_what_is_there(tapes, tmp_path, monkeypatch, other):
    query = {"target": "loss", "wrt": "w", "chunk": CHUNK}
    rt.farm.backward(tapes, work=tmp_path, **query)
    paths = loaded(monkeypatch)
    rt.farm.backward(tapes, work=tmp_path, reduce="mean", **query)
    assert paths == []
    rt.farm.backward(tapes, work=tmp_path, **{**query, **other})
    assert len(paths) >= 16  # the last chunk may be the same with another size


def test_another_version_does_not_use_what_is_there(tapes, tmp_path, monkeypatch):
    rt.farm.backward(tapes[:2], "loss", work=tmp_path)
    monkeypatch.setattr(_job, "__version__", "99.0")
    monkeypatch.setattr(_worker, "__version__", "99.0")
    paths = loaded(monkeypatch)
    rt.farm.backward(tapes[:2], "loss", work=tmp_path)
    assert len(paths) == 2


def test_a_worker_of_another_version_is_refused(tapes, monkeypatch):
    monkeypatch.setattr(_worker, "__version__", "0.0.1")
    with pytest.raises(FarmError, match=r"A worker has retrotape 0.0.1 and .*, and this process .*\. Install the same"):
        rt.farm.backward(tapes, "loss")


def test_two_drivers_on_one_folder(tapes, expected, tmp_path):
    with ThreadPoolExecutor(2) as drivers:
        both = [drivers.submit(rt.farm.backward, tapes, "loss", chunk=CHUNK, work=tmp_path) for _ in range(2)]
        for future in both:
            assert_same_bits(future.result(), expected)
    assert len(parts(tmp_path)) == 5
    assert len(os.listdir(tmp_path)) == 5  # no temporary file is left


def test_temporary_results_are_removed(tapes, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rt.farm.backward(tapes, "loss")
    assert os.listdir(tmp_path) == []
    each = rt.farm.backward(tapes, "loss", reduce="each")
    assert len(os.listdir(tmp_path)) == 1
    assert each[0]["w"].shape == [3, 2]
    del each
    assert os.listdir(tmp_path) == []
    with pytest.raises(FarmError):
        rt.farm.backward(tapes, "nothing")
    assert os.listdir(tmp_path) == []


def test_workers_that_write_elsewhere_are_noticed(tapes, tmp_path, monkeypatch):
    monkeypatch.setattr(_worker, "write", lambda path, content: None)
    with pytest.raises(FarmError) as raised:
        rt.farm.backward(tapes, "loss", work=tmp_path)
    assert str(raised.value) == (
        f"Workers have written results to {str(tmp_path)!r}, and this process does not see them there. "
        "Give a folder that all of them share: `work=`."
    )


# ------------------------------------------------------------------ tapes that fail


@pytest.fixture
def broken(own) -> list[str]:
    """Tapes of which one is damaged, one is no tape, and one is not there."""
    data = bytearray(Path(own[2]).read_bytes())
    data[-1] ^= 1
    Path(own[2]).write_bytes(data)
    Path(own[9]).write_text("hello")
    os.unlink(own[10])
    return own


def test_the_first_failure_stops(broken, tmp_path):
    there = [path for path in broken if os.path.exists(path)]
    with pytest.raises(FarmError) as raised:
        rt.farm.backward(there, "loss", chunk=CHUNK)
    assert str(raised.value).startswith(f"{broken[2]} failed: CorruptTapeError: Cannot read the tape {broken[2]}: ")
    assert str(raised.value).endswith(
        'To leave out tapes that fail, and have them listed in `failed`: `on_error="continue"`.'
    )
    assert list(raised.value.failed) == [broken[2]]
    assert isinstance(raised.value.__cause__, RemoteError)
    assert "Traceback" in str(raised.value.__cause__)


def test_a_missing_tape_stops_before_anything_is_computed(broken, monkeypatch):
    paths = loaded(monkeypatch)
    with pytest.raises(NoTapesError) as raised:
        rt.farm.backward(broken, "loss")
    assert str(raised.value) == (f'There is no {broken[10]!r}. To leave out what is missing: `on_error="continue"`.')
    assert paths == []


def test_failures_are_left_out_and_listed(broken, tmp_path, monkeypatch):
    work = tmp_path / "work"
    total = rt.farm.backward(broken, "loss", chunk=CHUNK, on_error="continue", work=work)
    assert total.count == 15
    assert list(total.failed) == [broken[2], broken[9], broken[10]]
    assert total.failed[broken[9]].startswith("CorruptTapeError: Cannot read the tape")
    assert total.failed[broken[10]].startswith("FileNotFoundError: ")
    left = [path for path in broken if path not in total.failed]
    assert_same_bits(total, _chunked_sum(broken, left))
    mean = rt.farm.backward(broken, "loss", chunk=CHUNK, on_error="continue", reduce="mean", work=work)
    np.testing.assert_array_equal(mean["w"], total["w"] / 15)


def _chunked_sum(paths: list[str], left: list[str]) -> dict[str, np.ndarray]:
    groups = [[p for p in paths[begin : begin + CHUNK] if p in left] for begin in range(0, len(paths), CHUNK)]
    total = None
    for group in groups:
        part = plain_sum(group, CHUNK)
        total = part if total is None else {name: total[name] + part[name] for name in part}
    return total


def test_what_failed_is_tried_again(broken, tmp_path, monkeypatch):
    work = tmp_path / "work"
    rt.farm.backward(broken, "loss", chunk=CHUNK, on_error="continue", work=work)
    tape, names = record(2)
    tape.save(broken[2], names)
    paths = loaded(monkeypatch)
    total = rt.farm.backward(broken, "loss", chunk=CHUNK, on_error="continue", work=work)
    assert list(total.failed) == [broken[9], broken[10]]
    assert total.count == 16
    assert paths == [Path(path).name for path in (*broken[:4], *broken[8:10], broken[11])]  # 10 is still missing


def test_a_failure_stands_for_the_result_of_a_tape(broken):
    each = rt.farm.backward(broken, "loss", "w", reduce="each", chunk=CHUNK, on_error="continue")
    assert len(each) == 18
    assert isinstance(each[9], rt.farm.Failure)
    assert each[9].name == broken[9]
    assert each[9].error == each.failed[broken[9]]
    assert each[11]["w"].shape == [3, 2]
    assert repr(each) == "<18 results in files, 3 of them failed>"


def test_where_all_fail_there_is_no_result(tapes):
    with pytest.raises(FarmError) as raised:
        rt.farm.backward(tapes, "lass", on_error="continue")
    assert str(raised.value).startswith(
        f"All 18 tapes failed; the first, {tapes[0]}: UnknownNameError: This tape has nothing named 'lass'; "
    )
    assert str(raised.value).endswith("Did you mean 'loss'? Correct that first.")
    assert len(raised.value.failed) == 18
