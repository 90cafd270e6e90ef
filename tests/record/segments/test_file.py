"""The file that values are moved to: where it lies, when it goes, and what is done when the disk is full."""

from __future__ import annotations

import errno
import gc
import os
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import set_segment
from record.segments.tools import LAYER, X, chain, close, frozen, long
from retrotape.record import _offload, is_offloaded

pytestmark = pytest.mark.slow  # every program four times, in segments of a hundred bytes


def open_files(folder: Path) -> list[str]:
    """Return what this process has open in a folder, named or not."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue  # the one that listed them
        if target.startswith(f"{folder}/"):
            found.append(target)
    return found


linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")


@linux
def test_the_file_lies_where_it_is_told_to_and_has_no_name(tmp_path: Path):
    tape, x, loss = long("disk", 64, directory=str(tmp_path))
    memory = tape.memory()
    assert 60 * LAYER <= memory.away <= 64 * LAYER
    assert memory.bytes < 4 * LAYER
    assert "in a file" in str(memory)
    assert len(open_files(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []
    expected = long("needed", 64)
    assert frozen(tape.gradient(loss, x)) == frozen(expected[0].gradient(expected[2], expected[1]))
    assert len(open_files(tmp_path)) == 1


@linux
def test_the_file_goes_with_the_tape_and_nobody_complains(tmp_path: Path):
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        tape, x, loss = long("disk", 64, directory=str(tmp_path))
        tape.gradient(loss, x)
        tape.hvp(loss, x, x)
        assert len(open_files(tmp_path)) == 1
        del tape
        gc.collect()
    assert open_files(tmp_path) == []
    assert [complaint for complaint in complaints if complaint.category is ResourceWarning] == []


@linux
def test_the_file_goes_without_the_collector(tmp_path: Path):
    gc.collect()
    gc.disable()
    try:
        tape, _, _ = long("disk", 64, directory=str(tmp_path))
        assert len(open_files(tmp_path)) == 1
        del tape, _
        assert open_files(tmp_path) == []
    finally:
        gc.enable()


@linux
def test_reset_lets_go_of_the_file(tmp_path: Path):
    tape, x, _ = long("disk", 64, directory=str(tmp_path))
    tape.reset()
    gc.collect()
    assert open_files(tmp_path) == []
    with tape, rt.Tape() as needed:
        y = chain(x, 20)
    assert tape.memory().away
    assert len(open_files(tmp_path)) == 1
    assert frozen(tape.gradient(y, x)) == frozen(needed.gradient(y, x))


@linux
def test_nothing_is_written_before_there_is_something_to_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    set_segment(monkeypatch, 10**6)
    tape, x, loss = long("disk", 64, directory=str(tmp_path))
    tape.gradient(loss, x)
    assert open_files(tmp_path) == []
    assert tape.memory().away == 0


def test_a_directory_that_is_not_there(tmp_path: Path):
    missing = tmp_path / "missing"
    with pytest.raises((OSError, ValueError), match=str(missing)):
        long("disk", 64, directory=str(missing))
    with rt.Tape() as tape:  # and others record as ever
        y = X * X
    close(tape.gradient(y, X), 2 * X)


def refuse(patch: pytest.MonkeyPatch, refuses: Callable[[int], bool]) -> None:
    """Let there be no room for some of the writes."""
    write, writes = os.pwrite, count(1)

    def refusing(file: int, data: Any, offset: int) -> int:
        if refuses(next(writes)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data, offset)

    patch.setattr(_offload.os, "pwrite", refusing)


@pytest.mark.parametrize("last", [0, 5])
def test_what_a_full_disk_does_not_take_stays_in_memory(monkeypatch: pytest.MonkeyPatch, last: int):
    refuse(monkeypatch, lambda number: number > last)
    expected = long("needed", 64)
    with pytest.warns(UserWarning, match="No space left"):
        tape, x, loss = long("disk", 64)
    assert tape.memory().away == last * LAYER
    assert tape.memory().bytes >= (64 - last) * LAYER
    assert frozen(tape.gradient(loss, x)) == frozen(expected[0].gradient(expected[2], expected[1]))


@pytest.mark.parametrize(
    ("refused", "complaint"),
    [
        ({1}, "ignore"),
        ({5}, "ignore"),
        ({5, 6, 9}, "ignore"),
        ({1}, "error"),
        ({5}, "error"),
        ({5, 6, 9}, "error"),
    ],
)
def test_after_a_full_disk_answers_are_right(monkeypatch: pytest.MonkeyPatch, refused: set[int], complaint: Any):
    refuse(monkeypatch, lambda number: number in refused)
    monkeypatch.setattr("retrotape.record._stack.ELEMENTS", 1)  # as for large tensors: digested while ops run
    with warnings.catch_warnings(), rt.Tape() as needed, rt.Tape(keep="disk") as tape:
        warnings.simplefilter(complaint)  # where a warning is an error, it comes out of the user's op
        y = X
        for _ in range(60):
            try:
                y = tf.sin(y) * 1.1
            except UserWarning:
                y = tf.sin(y) * 1.1  # once more
    close(tape.gradient(y, X), needed.gradient(y, X))


def test_short_reads_and_writes(monkeypatch: pytest.MonkeyPatch):
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(_offload.os, "pwrite", lambda file, data, offset: write(file, data[:7], offset))
    monkeypatch.setattr(_offload.os, "preadv", lambda file, data, offset: read(file, [data[0][:5]], offset))
    expected, (tape, x, loss) = long("needed", 20), long("disk", 20)
    assert tape.memory().away
    assert frozen(tape.gradient(loss, x)) == frozen(expected[0].gradient(expected[2], expected[1]))


def test_threads_that_read_at_the_same_time():
    tape, x, loss = long("disk", 80)
    whole = rt.join(tape)  # with a lock of its own, on the same file
    expected = frozen(tape.gradient(loss, x))
    found: list[Any] = []

    def ask(asked: Any) -> None:
        try:
            found.extend(frozen(asked.gradient(loss, x)) for _ in range(4))
        except OSError as error:
            found.append(error)

    threads = [Thread(target=ask, args=(asked,)) for asked in (tape, whole, rt.join(tape), rt.join(whole))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 16


def test_a_file_that_was_cut_is_noticed():
    tape, x, loss = long("disk", 64)
    away = next(value for value in tape._session.trace.values.values() if is_offloaded(value))
    away._file._file.truncate(100)
    with pytest.raises(OSError, match="too short"):
        tape.gradient(loss, x)
