"""A save removes what processes that have ended left behind, and nothing else."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from files.store.reading import read_all
from files.store.versions import left_behind, save, version_of
from retrotape.files.store import Stored, write
from retrotape.io import _replace as replace


@pytest.fixture(params=["file", "folder"])
def form(request, tmp_path) -> dict:
    return {} if request.param == "file" else {"store": tmp_path / "store"}


STALE = ".retrotape-4194304-0123456789abcdef.tmp"


def test_what_the_dead_left_is_removed(form, tmp_path):
    path = tmp_path / "a.tape"
    save(path, 1, **form)
    (tmp_path / STALE).write_bytes(b"half a tape")
    if form:
        (path / STALE).write_bytes(b"half a tape")
        (tmp_path / "store" / STALE).write_bytes(b"half a tensor")
    save(path, 2, **form)
    assert left_behind(tmp_path) == ([STALE] if form else [])  # a folder's own save does not look beside it


def test_what_the_living_write_is_not(tmp_path):
    living = tmp_path / STALE
    living.write_bytes(b"half a tape")
    with open(living, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        save(tmp_path / "a.tape", 1)
        assert living.exists()
    save(tmp_path / "a.tape", 2)
    assert not living.exists()


def test_another_save_of_the_same_process_is_not(tmp_path):
    def meanwhile():
        save(tmp_path / "b.tape", 2)
        return b"x"

    write(tmp_path / "a.tape", {}, [Stored("x", "int8", (1,), meanwhile)], {"done": True})
    assert read_all(tmp_path / "a.tape")["meta"] == {"done": True}
    assert version_of(tmp_path / "b.tape") == 2


@pytest.mark.parametrize(
    "name",
    ["a.tmp", ".retrotape-1-x.tmp", ".retrotape-1-0123456789abcdef.tmp.tape", "x.retrotape-1-0123456789abcdef.tmp"],
)
def test_files_of_others_are_not(name, tmp_path):
    (tmp_path / name).write_text("precious")
    save(tmp_path / "a.tape", 1)
    assert (tmp_path / name).read_text() == "precious"


def test_a_link_that_looks_like_ours_is_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / STALE).symlink_to("precious")
    os.mkfifo(tmp_path / STALE.replace("0123", "4567"))
    save(tmp_path / "a.tape", 1)
    assert (tmp_path / "precious").read_text() == "precious"
    assert version_of(tmp_path / "a.tape") == 1


def test_where_there_are_no_locks_nothing_is_removed(tmp_path, monkeypatch):
    def no_locks(*args):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(replace.fcntl, "flock", no_locks)
    (tmp_path / STALE).write_bytes(b"perhaps alive")
    save(tmp_path / "a.tape", 1)
    assert left_behind(tmp_path) == [STALE]
    assert version_of(tmp_path / "a.tape") == 1


def test_a_file_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    real, stolen = fcntl.flock, []

    def flock(descriptor, how):
        if not stolen:
            stolen.extend(tmp_path.glob(".retrotape-*"))
            stolen[0].unlink()
        real(descriptor, how)

    monkeypatch.setattr(replace.fcntl, "flock", flock)
    save(tmp_path / "a.tape", 1)
    assert len(stolen) == 1
    assert version_of(tmp_path / "a.tape") == 1
    assert left_behind(tmp_path) == []
