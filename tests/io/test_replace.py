"""A file is replaced as a whole, whatever interrupts that, and no descriptor or unfinished file is left."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from retrotape.cli._arrays import write_arrays
from retrotape.io import Replacement, replace_file
from retrotape.io import _replace as replace
from retrotape.report import write_page

STALE = ".retrotape-4194304-0123456789abcdef.tmp"


class Interrupted:
    """The module `os`, but Ctrl-C comes right after the call number `at` of those that change something, or before."""

    CALLS = ("open", "write", "fsync", "fstat", "chmod", "lstat", "replace", "unlink", "close", "scandir")

    def __init__(self, at: int, before: bool) -> None:
        self._left, self._before = at, before
        self.where: str | None = None

    def __getattr__(self, name: str):
        real = getattr(os, name)
        if name not in self.CALLS:
            return real

        def call(*args, **kwargs):
            self._left -= 1
            if self._left == 0:
                self.where = name
                if self._before and name != "close":
                    raise KeyboardInterrupt
                result = real(*args, **kwargs)
                if name == "open":  # its result is lost
                    os.close(result)
                if name == "scandir":
                    result.close()
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        return call


WRITERS = {
    "bytes": lambda path, text: replace_file(str(path), text.encode()),
    "page": write_page,
    "archive": lambda path, text: write_arrays(str(path), {text: np.zeros(3, np.float32)}),
}


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("writer", WRITERS)
def test_an_interrupt_stays_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, before: bool):
    path, seen = tmp_path / "it.npz", set()
    write = WRITERS[writer]
    for at in itertools.count(1):
        write(path, "old")
        old, held = path.read_bytes(), open_descriptors()
        system = Interrupted(at, before)
        with monkeypatch.context() as patched:
            patched.setattr(replace, "os", system)
            if writer != "bytes":
                patched.setattr(sys.modules[write.__module__] if writer == "page" else replace, "os", system)
            try:
                write(path, "new")
            except KeyboardInterrupt:
                assert system.where is not None
        if system.where is None:
            break
        seen.add(system.where)
        write(tmp_path / "other", "new") if writer != "archive" else write(tmp_path / "other.npz", "new")
        assert path.read_bytes() in (old, next(tmp_path.glob("other*")).read_bytes())
        assert open_descriptors() == held
        assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []  # the next one has swept
    assert {"open", "fsync", "replace", "fstat"} <= seen


@pytest.mark.parametrize("call", ["fstat", "chmod"])
def test_an_error_after_the_unfinished_file_was_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    (tmp_path / "it").write_bytes(b"old")
    held = open_descriptors()

    def fail(*args):
        raise MemoryError if call == "chmod" else OSError("no")

    with monkeypatch.context() as patched:
        patched.setattr(replace.os, call, fail)
        with pytest.raises((OSError, MemoryError)):
            replace_file(str(tmp_path / "it"), b"new")
    assert os.listdir(tmp_path) == ["it"]
    assert open_descriptors() == held


@pytest.mark.parametrize("writer", WRITERS)
def test_what_the_dead_left_is_removed(tmp_path: Path, writer: str):
    (tmp_path / STALE).write_bytes(b"half")
    WRITERS[writer](tmp_path / "it.npz", "x")
    assert os.listdir(tmp_path) == ["it.npz"]


def test_without_a_commit_nothing_changes(tmp_path: Path):
    (tmp_path / "it").write_bytes(b"old")
    with Replacement(str(tmp_path / "it")) as output:
        output.write(b"new")
    assert (tmp_path / "it").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["it"]


def test_an_archive_has_the_permissions_of_a_new_file(tmp_path: Path):
    """And the umask of the process, which other threads use, is not touched."""
    before = os.umask(0o027)
    try:
        write_arrays(str(tmp_path / "it.npz"), {"x": np.zeros(1, np.float32)})
    finally:
        os.umask(before)
    assert (tmp_path / "it.npz").stat().st_mode & 0o777 == 0o640
