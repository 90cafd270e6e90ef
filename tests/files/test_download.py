"""Downloads: folders with a manifest, and how much is downloaded."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

fsspec = pytest.importorskip("fsspec", reason="the extra [fsspec] is not installed")

import retrotape as rt  # noqa: E402
from files.file_systems import Unversioned, Versioned, empty_cache, put, sharded, small  # noqa: E402
from retrotape.errors import CorruptTapeError, TapeWriteError, UnsafeTapeError, UrlError  # noqa: E402
from retrotape.files.download import local_copy, local_copy_of_folder  # noqa: E402
from retrotape.files.remote import read_at_most  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


# ------------------------------------------------------------------ folders


def test_a_folder_with_a_manifest(cache: Path):
    contents = sharded("versioned://job")
    for copy in (local_copy_of_folder("versioned://job"), local_copy("versioned://job/")):
        assert sorted(os.listdir(copy)) == ["manifest.json", *contents]
        assert {name: Path(copy, name).read_bytes() for name in contents} == contents
    first, one = local_copy_of_folder("versioned://job"), next(iter(contents))
    assert local_copy_of_folder("versioned://job") == first
    os.truncate(os.path.join(first, one), 5)
    assert local_copy_of_folder("versioned://job") == first
    assert os.path.getsize(os.path.join(first, one)) == 1000


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a\\b", "..", "", "c:x", "manifest.json", 3])
def test_a_manifest_that_names_something_else(name: object, cache: Path):
    sharded("memory://job", file=name)
    with pytest.raises(CorruptTapeError, match=r"memory://job: manifest\.json has a shard without a name"):
        local_copy_of_folder("memory://job")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bytes": -1}, "has a shard without a size"),
        ({"bytes": True}, "has a shard without a size"),
        ({"sha256": "0"}, "has a shard without a name or a sha256"),
        ({"file": "shard-00000-of-00002-01234567.tape"}, "are not those of one run, in order"),
        ({"bytes": 999}, "the download has 1,000 bytes or more, and the file there has 999"),
        ({"bytes": 1001}, "the download has 1,000 bytes, and the file there has 1,001"),
    ],
)
def test_a_manifest_that_makes_no_sense(changes: dict[str, object], problem: str, cache: Path):
    sharded("memory://job", **changes)
    with pytest.raises(CorruptTapeError, match=problem):
        local_copy_of_folder("memory://job")
    assert not cache.exists() or os.listdir(cache) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"[]", r"manifest\.json is not a manifest"),
        (b"{", r"manifest\.json is not JSON"),
        (b"\xff", r"manifest\.json is not UTF-8"),
        (b'{"format": 1, "format": 2}', r"manifest\.json has 'format' twice"),
        (b"[" * 100 + b"]" * 100, r"lists and objects in manifest\.json are too deep: 100, the limit is 64"),
    ],
)
def test_a_manifest_that_is_no_manifest(text: bytes, problem: str):
    """The same text is refused as in a local folder, for the same reason."""
    fsspec.filesystem("memory").pipe_file("/job/manifest.json", text)
    with pytest.raises((CorruptTapeError, UnsafeTapeError), match=rf"memory://job: {problem}"):
        local_copy_of_folder("memory://job")


def test_a_folder_without_a_manifest():
    put("memory://job/a.tape")
    with pytest.raises(UrlError, match=r"it is a folder without manifest\.json; a tape with a store cannot"):
        rt.load("memory://job")


def test_a_store_behind_a_url(tmp_path: Path):
    tape, x, _ = small()
    for path, store in (("memory://a", tmp_path), (tmp_path / "a", "memory://store")):
        with pytest.raises(TapeWriteError, match=r"which a URL cannot hold\. .* without `store=`"):
            tape.save(path, x=x, store=store)


# ------------------------------------------------------------------ how much


@pytest.mark.parametrize("known", [True, False])
def test_a_manifest_is_read_as_far_as_it_may_be_long(monkeypatch: pytest.MonkeyPatch, known: bool):
    sharded("versioned://job")
    for module in ("retrotape.files.store._manifest", "retrotape.files.store"):
        monkeypatch.setattr(f"{module}.LARGEST_MANIFEST", 100)
    read: list[int] = []
    monkeypatch.setattr(Versioned, "cat_file", counting(read))
    if not known:
        monkeypatch.setattr(Versioned, "info", without_size)
    with pytest.raises(UnsafeTapeError, match=r"versioned://job: manifest\.json has more than 100 bytes"):
        local_copy_of_folder("versioned://job")
    assert read == [101]
    assert Versioned.downloads == 0


def test_what_a_file_begins_with():
    files = fsspec.filesystem("memory")
    files.pipe_file("/a", b"12345")
    assert [read_at_most(files, "/a", size) for size in (3, 5, 9)] == [b"123", b"12345", b"12345"]


def counting(read: list[int]) -> Any:
    def cat_file(self: Any, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        found = super(Versioned, self).cat_file(path, start, end, **options)
        read.append(len(found))
        return found

    return cat_file


def without_size(self: Any, path: str, **options: Any) -> dict[str, Any]:
    found = super(type(self), self).info(path, **options)
    return {key: value for key, value in found.items() if key != "size"}


@pytest.mark.parametrize("cached", [False, True])
def test_more_than_the_caller_allows(cached: bool):
    sharded("versioned://job")
    size = put("versioned://a.tape")
    if cached:
        local_copy("versioned://job"), local_copy("versioned://a.tape")
    before = Versioned.downloads
    for url, total in (("versioned://job", 2000), ("versioned://a.tape", size)):
        problem = rf"{url}: there are {total:,} bytes to download, the limit is {total - 1:,}\. "
        with pytest.raises(UnsafeTapeError, match=rf"{problem}If you trust .* `Limits\(total_bytes={total}\)`"):
            rt.load(url, limits=rt.store.Limits(total_bytes=total - 1))
    assert Versioned.downloads == before
    assert float(rt.load("versioned://a.tape", limits=rt.store.Limits(total_bytes=size)).gradient("y", "x")) == 6.0


def test_more_than_the_caller_allows_of_a_file_of_unknown_size(cache: Path, monkeypatch: pytest.MonkeyPatch):
    size = put("unversioned://a.tape")
    monkeypatch.setattr(Unversioned, "info", without_size)
    monkeypatch.setattr(Unversioned, "blocksize", 100)
    with pytest.raises(UnsafeTapeError, match=r"there are 1,100 bytes or more to download, the limit is 1,000"):
        rt.load("unversioned://a.tape", limits=rt.store.Limits(total_bytes=1000))
    assert size > 1100
    assert os.listdir(cache) == []


def test_a_server_that_sends_more_than_it_has_said(cache: Path, monkeypatch: pytest.MonkeyPatch):
    sharded("versioned://job", bytes=300)
    monkeypatch.setattr(Versioned, "blocksize", 100)
    with pytest.raises(CorruptTapeError, match="the download has 400 bytes or more, and the file there has 300"):
        local_copy("versioned://job")
    assert os.listdir(cache) == []


def test_more_than_the_disk_can_hold(cache: Path, monkeypatch: pytest.MonkeyPatch):
    sharded("versioned://job", bytes=2**60)
    size = put("versioned://a.tape")
    with pytest.raises(UrlError, match=rf"versioned://job: there are {2**61:,} bytes to download, and [\d,]+ are free"):
        rt.load("versioned://job")
    copy = local_copy("versioned://a.tape")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - size + 1, size - 1))
    assert local_copy("versioned://a.tape") == copy  # which needs no space
    os.unlink(copy)
    with pytest.raises(UrlError, match=r"are free on the disk of '.*'\. Free some space, or set `RETROTAPE_CACHE`"):
        local_copy("versioned://a.tape")
    assert Versioned.downloads == 1
    assert os.listdir(cache) == []
