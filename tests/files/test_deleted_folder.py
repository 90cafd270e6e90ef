"""A folder that the user deletes while a tape is saved there: an error that says so or a tape that was complete; the
folder is not made again, and what stays of it has nothing unfinished in it."""

from __future__ import annotations

import itertools
import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
import tensorflow as tf

import retrotape as rt
from files.store.versions import left_behind
from retrotape.errors import TapeWriteError
from retrotape.files.store import _blobs as blobs
from retrotape.io import _replace as replace

SOON = 60.0


class ThenDeleted:
    """The module `os`, but `delete` is called before the call number `at` of those that look at a disk."""

    CALLS = ("open", "write", "fsync", "replace", "unlink", "mkdir", "close", "scandir", "lstat", "rmdir")

    def __init__(self, at: int, delete: Callable[[], None]) -> None:
        self._left, self._delete = at, delete
        self.was_called = False

    def __getattr__(self, name: str):
        real = getattr(os, name)

        def call(*args, **kwargs):
            self._left -= 1
            if self._left == 0:
                self.was_called = True
                self._delete()
            return real(*args, **kwargs)

        return call if name in self.CALLS else real


@pytest.fixture(scope="module")
def recorded() -> tuple[rt.Tape, dict[str, tf.Tensor]]:
    x = tf.constant([3.0] * 100)
    with rt.Tape() as tape:
        y = tf.reduce_sum(x * x)
    return tape, {"x": x, "y": y}


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("form", ["file", "store", "store beside"])
def test_a_folder_that_is_deleted_at_any_moment(recorded, tmp_path, monkeypatch, form: str, wait: bool):
    tape, names = recorded
    folder, outcomes = tmp_path / "run", list[str]()
    store = {"file": None, "store": folder / "store", "store beside": tmp_path / "store"}[form]
    for at in itertools.count(1):
        folder.mkdir()
        system = ThenDeleted(at, lambda: shutil.rmtree(folder))
        with monkeypatch.context() as patched, warnings.catch_warnings():
            warnings.simplefilter("error")
            patched.setattr(replace, "os", system)
            patched.setattr(blobs, "os", system)
            try:
                saving = tape.save(folder / "a.tape", names, store=store, wait=wait)
                assert (saving.result(SOON) if isinstance(saving, Future) else saving) > 0
                outcomes.append("saved")
            except TapeWriteError as error:
                outcomes.append(str(error))
        if not system.was_called:
            break
        assert not folder.exists()
        assert left_behind(tmp_path) == []
    assert "saved" in outcomes
    assert outcomes[0] != "saved"
    assert all(text == "saved" or "Create the directory first" in text for text in outcomes), outcomes
    assert float(rt.load(folder / "a.tape").gradient("y", "x")[0]) == 6.0


def test_an_unfinished_file_that_is_deleted(recorded, tmp_path, monkeypatch):
    """As by a deletion of the folder that then fails, because there is something new in it."""
    tape, names = recorded
    outcomes = []
    for at in itertools.count(1):
        system = ThenDeleted(at, lambda: [path.unlink() for path in tmp_path.iterdir()])
        with monkeypatch.context() as patched:
            patched.setattr(replace, "os", system)
            try:
                tape.save(tmp_path / "a.tape", names)
                outcomes.append("saved")
            except TapeWriteError as error:
                outcomes.append(str(error))
        if not system.was_called:
            break
        assert left_behind(tmp_path) == []
    remedy = "Its unfinished file was deleted while it was being written: save it again."
    assert set(outcomes) > {"saved"}
    assert all(text == "saved" or remedy in text for text in outcomes), outcomes


def test_a_folder_that_is_deleted_while_many_tapes_are_saved_in_it(recorded, tmp_path: Path):
    """For real: what is saved afterwards fails with its own error, and once all are done the folder can be deleted."""
    tape, names = recorded
    for _ in range(20):
        folder = tmp_path / "run"
        folder.mkdir()
        savings = [tape.save(folder / f"{number}.tape", names, wait=False) for number in range(5)]
        savings[0].result(SOON)
        shutil.rmtree(folder, ignore_errors=True)  # it may meet a file that was not there before
        for saving in savings:
            error = saving.exception(SOON)
            assert error is None or "deleted" in str(error) or "Create the directory first" in str(error)
        shutil.rmtree(folder, ignore_errors=True)
        assert not folder.exists()
