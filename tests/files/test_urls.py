"""Tapes behind URLs: saved, loaded, cached, and what goes wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

fsspec = pytest.importorskip("fsspec", reason="the extra [fsspec] is not installed")

import retrotape as rt  # noqa: E402
from files.file_systems import Failing, Versioned, empty_cache, put, small  # noqa: E402
from retrotape.errors import TapeWriteError, UrlError  # noqa: E402
from retrotape.files.download import local_copy  # noqa: E402
from retrotape.files.urls import expand, is_url, local_path, upload  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


def files_of(url: str) -> list[str]:
    files, path = fsspec.core.url_to_fs(url)
    return sorted(name.rpartition("/")[2] for name in files.find(path))


# ------------------------------------------------------------------ what is a URL


def test_what_is_a_url():
    urls = ("s3://b/a", "memory://a", "simplecache::s3://b/a", "file:///a", "zip://a::s3://b/c.zip", "HTTPS://h/a")
    assert all(is_url(url) for url in urls)
    paths = ("a.tape", "/a/b.tape", "C:\\a.tape", "C:/a.tape", "c://a.tape", "a::b", "x/s3://b", "", b"s3://b", None)
    assert not any(is_url(path) for path in (*paths, Path("s3://b/a")))


def test_file_urls_are_local_paths(tmp_path: Path, cache: Path):
    url = f"file://{tmp_path}/with space%20.tape".replace(" ", "%20")
    assert local_path(url) == f"{tmp_path}/with space .tape"
    size = put(url)
    assert (tmp_path / "with space .tape").stat().st_size == size
    assert float(rt.load(url).gradient("y", "x")) == 6.0
    assert not cache.exists()
    with pytest.raises(UrlError, match=r"'tmp' stands where a host would\. .* `file:///tmp/a\.tape`"):
        rt.load("file://tmp/a.tape")


def test_a_folder_with_a_store_by_file_urls(tmp_path: Path):
    tape, x, y = small()
    tape.save(f"file://{tmp_path}/folder", x=x, y=y, store=f"file://{tmp_path}/store")
    assert float(rt.load(f"file://{tmp_path}/folder").gradient("y", "x")) == 6.0


# ------------------------------------------------------------------ save and load


@pytest.mark.parametrize("url", ["memory://job/a.tape", "versioned://job/a.tape", "unversioned://a.tape"])
def test_the_bytes_are_those_of_a_local_file(tmp_path: Path, url: str):
    size = put(url)
    assert put(str(tmp_path / "a.tape")) == size
    files, path = fsspec.core.url_to_fs(url)
    assert files.cat_file(path) == (tmp_path / "a.tape").read_bytes()
    assert files_of(url.rpartition("/")[0] + "/") == ["a.tape"]
    loaded = rt.load(url)
    assert float(loaded.gradient("y", "x")) == 6.0
    loaded.save(url.replace("a.tape", "b.tape"))
    assert files.cat_file(path) == files.cat_file(path.replace("a.tape", "b.tape"))


@pytest.mark.parametrize("name", ["a[1].tape", "a*.tape", "what?.tape"])
def test_a_name_that_looks_like_a_pattern(name: str):
    put(f"memory://job/{name}")
    assert files_of("memory://job") == [name]
    assert float(rt.load(f"memory://job/{name}").gradient("y", "x")) == 6.0


def test_chained_urls(tmp_path: Path):
    put("simplecache::memory://job/a.tape")
    assert files_of("memory://job") == ["a.tape"]
    assert float(rt.load("simplecache::memory://job/a.tape").gradient("y", "x")) == 6.0
    put(str(tmp_path / "a.tape"))
    with fsspec.open(f"zip://in/a.tape::file://{tmp_path}/a.zip", "wb", zip={"mode": "w"}) as out:
        out.write((tmp_path / "a.tape").read_bytes())
    assert float(rt.load(f"zip://in/a.tape::file://{tmp_path}/a.zip").gradient("y", "x")) == 6.0


def test_isolated():
    put("memory://a.tape")
    with rt.load("memory://a.tape", isolate=True) as isolated:
        assert float(isolated.gradient("y", "x")) == 6.0


def test_in_the_background():
    tape, x, y = small()
    size = tape.save("memory://a.tape", x=x, y=y, wait=False)
    assert float(rt.load("memory://a.tape").gradient("y", "x")) == 6.0  # waits for it
    assert size.result(60) > 0
    Failing.error = PermissionError("no key")
    with pytest.raises(TapeWriteError, match=r"Could not save the tape failing://a\.tape: access is denied"):
        tape.save("failing://a.tape", x=x, overwrite=False, wait=False)


def test_overwrite():
    put("memory://a.tape", 1.0)
    put("memory://a.tape", 2.0)
    tape, x, _ = small()
    with pytest.raises(TapeWriteError, match=r"memory://a\.tape: it exists already\. .* `overwrite=True`"):
        tape.save("memory://a.tape", x=x, overwrite=False)
    tape.save("memory://b.tape", x=x, overwrite=False)
    assert float(rt.load("memory://a.tape").value("x")) == 2.0
    assert files_of("memory://") == ["a.tape", "b.tape"]


def test_one_that_appears_meanwhile_is_not_overwritten(tmp_path: Path):
    put("memory://a.tape", 1.0)
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(TapeWriteError, match="exists already"):
        upload(str(tmp_path / "other"), "memory://a.tape", overwrite=False)
    assert float(rt.load("memory://a.tape").value("x")) == 1.0
    assert files_of("memory://") == ["a.tape"]


def test_object_stores_get_one_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """There the object has its new content at once, and renaming would copy it."""
    monkeypatch.setattr("retrotape.files.urls._ATOMIC", frozenset(["versioned"]))
    monkeypatch.setattr(Versioned, "mv", None)
    put("versioned://a.tape")
    assert float(rt.load("versioned://a.tape").gradient("y", "x")) == 6.0
    (tmp_path / "other").write_bytes(b"other")
    with pytest.raises(TapeWriteError, match="exists already"):
        upload(str(tmp_path / "other"), "versioned://a.tape", overwrite=False)


# ------------------------------------------------------------------ patterns


def test_expand(tmp_path: Path):
    for name in ("b", "a"):
        put(f"memory://job/{name}.tape")
        put(str(tmp_path / f"{name}.tape"))
    (tmp_path / "c.txt").touch()
    assert expand(str(tmp_path / "*.tape")) == [f"{tmp_path}/a.tape", f"{tmp_path}/b.tape"]
    assert expand(tmp_path / "*.tape") == expand(f"file://{tmp_path}/*.tape") == expand(str(tmp_path / "*.tape"))
    for pattern in ("memory://job/*.tape", "simplecache::memory://job/*.tape"):
        found = expand(pattern)
        assert [url.rpartition("/")[2] for url in found] == ["a.tape", "b.tape"]
        assert all(float(rt.load(url).gradient("y", "x")) == 6.0 for url in found)
    assert expand("memory://job/*.txt") == []


# ------------------------------------------------------------------ what goes wrong


def test_an_upload_that_fails_leaves_what_was_there(tmp_path: Path):
    files = fsspec.filesystem("failing")
    files.pipe_file("/a.tape", b"old")
    tape, x, _ = small()
    with pytest.raises(TapeWriteError, match=r"failing://a\.tape: ConnectionError: the connection was reset\. Check"):
        tape.save("failing://a.tape", x=x)
    assert files.cat_file("/a.tape") == b"old"
    assert files_of("failing://") == ["a.tape"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError("a"), r"Cannot open failing://…@host/a\.tape: it does not exist\. Check the name"),
        (PermissionError("403"), r"access is denied \(403\)\. Check your credentials"),
        (NotImplementedError(), r"this file system cannot do that\. Save to a local file"),
        (OSError(28, "No space left on device"), r"no space is left .* `RETROTAPE_CACHE`"),
        (KeyError("NoCredentials\x1b[2J"), r"KeyError: 'NoCredentials\\x1b\[2J'\. Check the connection"),
    ],
)
def test_errors_of_a_file_system(error: Exception, text: str):
    Failing.error = error
    with pytest.raises(UrlError, match=text) as caught:
        rt.load("failing://me:secret@host/a.tape")
    assert "secret" not in str(caught.value)


def test_not_found():
    with pytest.raises(UrlError, match=r"Cannot open memory://none\.tape: it does not exist"):
        rt.load("memory://none.tape")


def test_an_unknown_protocol():
    with pytest.raises(UrlError, match=r"the protocol 'nonesuch' is not known\. .* `fsspec\.register_implementation`"):
        rt.load("nonesuch://a.tape")
    with pytest.raises(TapeWriteError, match=r"nonesuch://a\.tape: the protocol 'nonesuch' is not known"):
        put("nonesuch://a.tape")


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UrlError, match=r"a package is missing .* `pip install s3fs`"):
        rt.load("s3://bucket/a.tape")
    with pytest.raises(TapeWriteError, match=r"`pip install s3fs`"):
        put("s3://bucket/a.tape")


def test_without_fsspec(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UrlError, match=r'memory:// needs fsspec, .* `pip install "retrotape\[fsspec\]"`'):
        rt.load("memory://a.tape")
    with pytest.raises(TapeWriteError, match=r'`pip install "retrotape\[fsspec\]"`'):
        put("memory://a.tape")


def test_a_cache_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    put("memory://a.tape")
    (tmp_path / "file").touch()
    monkeypatch.setenv("RETROTAPE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UrlError, match="Cannot open memory://a"):
        rt.load("memory://a.tape")


@pytest.mark.slow
def test_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The real client of S3, with a server on this machine."""
    server = pytest.importorskip("moto.server", reason="needs `pip install s3fs 'moto[server]'`, which are in no lock")
    s3fs = pytest.importorskip("s3fs", reason="needs `pip install s3fs`, which is in no lock")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    bucket.start()
    try:
        endpoint = f"http://127.0.0.1:{bucket.get_host_and_port()[1]}"
        monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": endpoint})
        s3fs.S3FileSystem().mkdir("bucket")
        for at in (1.0, 2.0):
            put("s3://bucket/job/a.tape", at)
            assert float(rt.load("s3://bucket/job/a.tape").value("x")) == at
        assert expand("s3://bucket/job/*.tape") == ["s3://bucket/job/a.tape"]
        assert local_copy("s3://bucket/job/a.tape") == local_copy("s3://bucket/job/a.tape")
        (tmp_path / "other").write_bytes(b"other")
        with pytest.raises(TapeWriteError, match="it exists already"):
            upload(str(tmp_path / "other"), "s3://bucket/job/a.tape", overwrite=False)
        monkeypatch.setattr("retrotape.files.urls.is_there", lambda files, path: False)  # it appears after the check
        with pytest.raises(TapeWriteError, match="it exists already"):
            upload(str(tmp_path / "other"), "s3://bucket/job/a.tape", overwrite=False)
        assert float(rt.load("s3://bucket/job/a.tape").value("x")) == 2.0
        with pytest.raises(UrlError, match="it does not exist"):
            rt.load("s3://bucket/job/none.tape")
        with pytest.raises(TapeWriteError, match="it does not exist"):
            put("s3://nobucket/a.tape")
    finally:
        bucket.stop()
