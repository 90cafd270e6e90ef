"""Local copies of what is behind URLs: versions, sizes, and the folder that they are in."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

fsspec = pytest.importorskip("fsspec", reason="the extra [fsspec] is not installed")

import retrotape as rt  # noqa: E402
from files.file_systems import Unversioned, Versioned, empty_cache, put, sharded  # noqa: E402
from retrotape.errors import CorruptTapeError, UrlError  # noqa: E402
from retrotape.files.download import local_copy, local_copy_of_folder  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


# ------------------------------------------------------------------ the cache


def test_a_version_is_downloaded_once(cache: Path):
    put("versioned://a.tape", 1.0)
    for _ in range(3):
        assert float(rt.load("versioned://a.tape").value("x")) == 1.0
    assert Versioned.downloads == 1
    put("versioned://a.tape", 2.0)
    assert float(rt.load("versioned://a.tape").value("x")) == 2.0
    assert Versioned.downloads == 2
    assert all(name.endswith("-a.tape") for name in os.listdir(cache))
    assert cache.stat().st_mode & 0o077 == 0


def test_without_a_version_it_is_downloaded_each_time():
    """The same size says nothing: other numbers have as many bytes."""
    for at in (1.0, 2.0):
        put("unversioned://a.tape", at)
        assert float(rt.load("unversioned://a.tape").value("x")) == at
    assert Unversioned.downloads == 2


def test_a_copy_that_lost_its_end_is_replaced():
    put("versioned://a.tape")
    copy = local_copy("versioned://a.tape")
    os.truncate(copy, 100)
    assert local_copy("versioned://a.tape") == copy
    assert float(rt.load("versioned://a.tape").gradient("y", "x")) == 6.0
    assert Versioned.downloads == 2


def test_a_download_that_ends_early_is_not_cached(cache: Path):
    put("truncating://a.tape")
    for _ in range(2):
        with pytest.raises(
            CorruptTapeError, match=r"truncating://a\.tape: the download has [\d,]+ bytes, and the file"
        ):
            rt.load("truncating://a.tape")
    assert os.listdir(cache) == []


def test_a_changed_copy_is_noticed():
    put("versioned://a.tape")
    copy = local_copy("versioned://a.tape")
    with open(copy, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    with pytest.raises(CorruptTapeError):
        rt.load("versioned://a.tape").gradient("y", "x")


def test_what_was_used_longest_ago_is_removed(cache: Path, monkeypatch: pytest.MonkeyPatch):
    size = put("versioned://0.tape")
    monkeypatch.setenv("RETROTAPE_CACHE_BYTES", str(3 * size))
    for number in range(3):
        put(f"versioned://{number}.tape")
        os.utime(local_copy(f"versioned://{number}.tape"), (number, number))
    os.utime(local_copy("versioned://0.tape"), (10, 10))  # used again
    abandoned, going_on = (f".unfinished-{number}-0123456789abcdef" for number in (1, 2))
    (cache / abandoned).touch()
    os.utime(cache / abandoned, (1, 1))
    (cache / going_on).touch()
    put("versioned://3.tape")
    local_copy("versioned://3.tape")
    assert not (cache / abandoned).exists()
    assert (cache / going_on).exists()
    assert sorted(name.partition("-")[2] for name in os.listdir(cache) if name != going_on) == [
        "0.tape",
        "2.tape",
        "3.tape",
    ]
    monkeypatch.setenv("RETROTAPE_CACHE_BYTES", "1")
    assert float(rt.load("versioned://1.tape").gradient("y", "x")) == 6.0  # the one in use stays
    assert [name.partition("-")[2] for name in os.listdir(cache)].count("1.tape") == 1


def test_what_others_keep_in_the_folder_stays(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RETROTAPE_CACHE_BYTES", "1")
    elsewhere = tmp_path / "elsewhere"
    names = ("photo.jpg", "0" * 32, ".unfinished-thesis", ".unfinished-1-x", "0" * 32 + "-not ours", "A" * 32 + "-a")
    cache.mkdir(mode=0o700, parents=True)
    elsewhere.mkdir()
    theirs = [folder / name for folder in (cache, cache.parent) for name in names]
    theirs += [cache.parent / ("0" * 32 + "-a.tape"), elsewhere / "a.tape", cache / "thesis" / "chapter.tex"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"years of work")
        os.utime(path, (1, 1))
    link = cache / ("0" * 32 + "-linked")
    link.symlink_to(elsewhere)
    os.utime(link, (1, 1), follow_symlinks=False)
    os.utime(cache / "thesis", (1, 1))
    put("versioned://a.tape")
    for _ in range(2):
        assert float(rt.load("versioned://a.tape").gradient("y", "x")) == 6.0
    assert [path for path in theirs if not path.exists()] == []
    assert link.is_symlink()


def test_a_link_in_place_of_an_entry_is_replaced(tmp_path: Path):
    put("versioned://a.tape")
    copy = Path(local_copy("versioned://a.tape"))
    other = tmp_path / "other"
    copy.rename(other)
    copy.symlink_to(other)
    assert local_copy("versioned://a.tape") == str(copy)
    assert not copy.is_symlink()
    assert other.exists()
    sharded("versioned://job")
    folder = Path(local_copy_of_folder("versioned://job"))
    folder.rename(tmp_path / "job")
    folder.symlink_to(tmp_path / "job")
    assert local_copy_of_folder("versioned://job") == str(folder)
    assert not folder.is_symlink()
    assert len(os.listdir(tmp_path / "job")) == 3


@pytest.mark.skipif(os.name != "posix", reason="there are no such permissions on this system")
def test_a_cache_that_others_can_write_to(cache: Path, monkeypatch: pytest.MonkeyPatch):
    put("memory://a.tape")
    cache.mkdir(parents=True)
    remedy = r"Set `RETROTAPE_CACHE` to a folder of your own that only you can write to"
    for folder in (cache, cache.parent):
        for mode in (0o720, 0o702):
            folder.chmod(mode)
            with pytest.raises(UrlError, match=rf"{folder.name}', can be written to by other users\. {remedy}"):
                rt.load("memory://a.tape")
        folder.chmod(0o700)
    cache.parent.chmod(0o1777)  # as /tmp: nobody can rename what others own
    assert float(rt.load("memory://a.tape").gradient("y", "x")) == 6.0
    if os.geteuid() == 0:
        os.chown(cache, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UrlError, match=rf"belongs to another user\. {remedy}"):
        rt.load("memory://a.tape")


def test_a_cache_that_is_no_folder(cache: Path, tmp_path: Path):
    put("memory://a.tape")
    cache.parent.mkdir()
    (tmp_path / "real").mkdir()
    cache.symlink_to(tmp_path / "real")
    with pytest.raises(UrlError, match=r"the folder for copies, '.*tapes-v1', is no folder"):
        rt.load("memory://a.tape")


def test_several_threads_download_at_once(cache: Path):
    put("versioned://a.tape")
    found: list[float] = []
    threads = [Thread(target=lambda: found.append(float(rt.load("versioned://a.tape").value("x")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [3.0] * 8
    assert len(os.listdir(cache)) == 1
