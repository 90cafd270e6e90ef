"""A folder of shards behind a URL: what is there, and what cannot be known."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

pytest.importorskip("fsspec", reason="the extra [fsspec] is not installed")

import retrotape as rt
from files.file_systems import Failing, empty_cache, sharded, small
from retrotape.errors import TapeWriteError
from retrotape.files import background, store
from retrotape.files.places import key_of
from retrotape.files.shard_folder import shard_folder

SOON = 60.0


@pytest.fixture(autouse=True)
def _no_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_cache(tmp_path, monkeypatch)
    monkeypatch.setattr("retrotape.files.shard_folder._PATIENCE", -1.0)


def test_what_is_there():
    name, data = next(iter(sharded("failing://job").items()))
    folder = shard_folder("failing://job/")
    assert folder.size_of(name) == len(data)
    assert folder.size_of("other.tape") is None
    assert folder.run() == "0123456789abcdef" * 2
    folder.check_visible([store.ShardFile(name, len(data), "")], 1)
    with pytest.raises(TapeWriteError, match=r"worker 1 does not see other\.tape, which another worker has written"):
        folder.check_visible([store.ShardFile("other.tape", 1, "")], 1)
    with pytest.raises(TapeWriteError, match="it exists already"):
        folder.check(overwrite=False)
    folder.check(overwrite=True)


def test_access_is_denied():
    """Which does not mean that there is nothing."""
    name = next(iter(sharded("failing://job")))
    folder = shard_folder("failing://job")
    Failing.error = PermissionError("403")
    with pytest.raises(TapeWriteError, match=r"failing://job: access is denied \(403\)"):
        folder.check(overwrite=False)
    with pytest.raises(TapeWriteError, match=r"failing://job: access is denied \(403\)"):
        folder.check_visible([store.ShardFile(name, 1000, "")], 1)


@pytest.mark.parametrize(
    ("left", "right"),
    [("memory://b/job/", "memory://b/job"), ("zip://job/::s3://b/a.zip", "zip://job::s3://b/a.zip")],
)
def test_one_folder_has_one_key(left: str, right: str):
    assert key_of(left) == key_of(right)
    assert key_of(left) != key_of(right.replace("job", "jobs"))


def test_load_waits_whatever_slashes_are_at_the_end():
    go = Event()
    tape, x, y = small()
    background.submit("(gate)", lambda: int(go.wait(SOON)))
    saving = tape.save("memory://b/job/", x=x, y=y, wait=False)
    assert key_of("memory://b/job") in background.pending
    go.set()
    assert float(rt.load("memory://b/job").gradient("y", "x")) == 6.0
    assert saving.done()
