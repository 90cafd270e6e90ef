"""Tapes behind URLs: everything that fsspec opens, such as `s3://bucket/a.tape`."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from retrotape.errors import CorruptTapeError, UnsafeTapeError, UrlError, printable
from retrotape.files import url_cache
from retrotape.files.remote import file_system, is_there, protocol_of, reading, without_login, writing

MANIFEST = "manifest.json"
_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.\-]*::)*[A-Za-z][A-Za-z0-9+.\-]+://")  # one letter would be a drive
_MANIFEST_BYTES = 2**24
_DIGEST = re.compile("[0-9a-f]{64}")
# Where an object has its new content at once, or not at all; elsewhere it is written under another name and renamed.
_ATOMIC = frozenset(("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci"))


def is_url(path: object) -> bool:
    """Return whether a path is a URL.

    >>> is_url("s3://bucket/a.tape"), is_url("simplecache::gs://b/a.tape"), is_url("a.tape"), is_url("C:/a.tape")
    (True, True, False, False)
    """
    return isinstance(path, str) and _URL.match(path) is not None


def local_path(url: str) -> str | None:
    """Return the path that a `file://` URL stands for; None for any other URL.

    >>> local_path("file:///tmp/a%20b.tape"), local_path("s3://bucket/a.tape")
    ('/tmp/a b.tape', None)
    """
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("file", "local") or "::" in url:
        return None
    if parts.netloc not in ("", "localhost"):
        remedy = f"Write three slashes for a path from the root: `file:///{parts.netloc}{parts.path}`."
        raise UrlError(without_login(url), f"{parts.netloc!r} stands where a host would", remedy)
    return url2pathname(url.partition("://")[2].removeprefix("localhost") or "/")


def expand(pattern: str | os.PathLike[str]) -> list[str]:
    """Return the paths or URLs that match a pattern, sorted.

    Args:
      pattern: With `*`, `?`, `[a-z]` and `**`; a path or a URL.

    >>> expand("no/such/*.tape")
    []
    """
    text = os.fspath(pattern)
    here = local_path(text) if is_url(text) else text
    if here is not None:
        return sorted(glob.glob(here, recursive=True))
    first, chained, rest = text.partition("::")
    if chained and "://" not in first:  # a cache around another file system
        return [f"{first}::{found}" for found in expand(rest)]
    with reading(text):
        files, path = file_system(text)
        return sorted(f"{files.unstrip_protocol(found)}{chained}{rest}" for found in files.glob(path))


def local_copy(url: str) -> str:
    """Return the path of a local copy of a file, or of a folder with a manifest.

    It is downloaded if there is no copy of the version that is there now.

    Raises:
      UrlError: If it cannot be downloaded.
      CorruptTapeError: If the download ended early.
    """
    with reading(url):
        files, path = file_system(url)
        info = files.info(path)
        if info.get("type") == "directory":
            return _folder(files, path, url)
        size = info.get("size")

        def fetch(to: str) -> None:
            _download(files, path, to, url, size)

        def is_whole(at: str) -> bool:
            return os.path.isfile(at) and size in (None, os.path.getsize(at))

        return url_cache.entry(url, url_cache.version_of(info), fetch, is_whole=is_whole)


def _download(files: Any, path: str, to: str, url: str, size: int | None) -> None:
    """Download a file; its content is verified by the digests in it, when it is used."""
    files.get_file(path, to)
    found = os.path.getsize(to)
    if size is not None and found != size:
        problem = f"the download has {found:,} bytes, and the file there has {size:,}"
        raise CorruptTapeError(without_login(url), problem, "Try again.")


def _folder(files: Any, path: str, url: str) -> str:
    if is_there(files, f"{path.rstrip('/')}/{MANIFEST}"):
        return local_copy_of_folder(url)
    raise UrlError(
        without_login(url),
        f"it is a folder without {MANIFEST}; a tape with a store cannot be opened by a URL",
        "Copy the folder and its store, and load the copy; or save one file, without `store=`.",
    )


def local_copy_of_folder(url: str) -> str:
    """Return the path of a local copy of a folder: its manifest, and the files that this names.

    Raises:
      UrlError: If it cannot be downloaded.
      CorruptTapeError: If the manifest makes no sense, or a download ended early.
      UnsafeTapeError: If the manifest names a file outside the folder.
    """
    with reading(url):
        files, path = file_system(_inside(url, MANIFEST))
        size = files.info(path).get("size")
        if size is not None and size > _MANIFEST_BYTES:
            problem = f"its {MANIFEST} has {size:,} bytes, more than {_MANIFEST_BYTES:,}"
            raise UnsafeTapeError(without_login(url), problem)
        manifest = files.cat_file(path)
        sizes = _files_in(url, manifest)

        def fetch(to: str) -> None:
            os.mkdir(to, 0o700)
            for name, nbytes in sizes.items():
                there = file_system(_inside(url, name))[1]
                _download(files, there, os.path.join(to, name), _inside(url, name), nbytes)
            with open(os.path.join(to, MANIFEST), "wb") as out:  # last, as everywhere
                out.write(manifest)

        def is_whole(at: str) -> bool:
            expected = {**sizes, MANIFEST: len(manifest)}
            paths = {name: os.path.join(at, name) for name in expected}
            return all(os.path.isfile(paths[name]) and os.path.getsize(paths[name]) == expected[name] for name in paths)

        return url_cache.entry(url, [manifest.hex()], fetch, is_whole=is_whole)  # it has the digest of every file


def _files_in(url: str, manifest: bytes) -> dict[str, int]:
    """Return the sizes of the files that a manifest names, by name."""
    shown = without_login(url)
    try:
        rows = json.loads(manifest)["shards"]
        found = [(row["file"], row["bytes"], row["sha256"]) for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorruptTapeError(shown, f"its {MANIFEST} is no list of shards") from None
    for name, nbytes, digest in found:
        if not isinstance(name, str) or not re.fullmatch(r"[^/\\:\0]+", name) or name in (".", "..", MANIFEST):
            raise UnsafeTapeError(shown, f"its {MANIFEST} names {printable(repr(name), 200)}, which is no file in it")
        if type(nbytes) is not int or nbytes < 0 or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise CorruptTapeError(shown, f"its {MANIFEST} gives no size and SHA-256 of {printable(name, 200)}")
    if len({name for name, _, _ in found}) != len(found):
        raise CorruptTapeError(shown, f"its {MANIFEST} names a file twice")
    return {name: nbytes for name, nbytes, _ in found}


def _inside(url: str, name: str) -> str:
    """Return the URL of a file in a folder.

    >>> _inside("zip://job::s3://bucket/a.zip", "x"), _inside("simplecache::s3://bucket/job/", "x")
    ('zip://job/x::s3://bucket/a.zip', 'simplecache::s3://bucket/job/x')
    """
    first, chained, rest = url.partition("::")
    if chained and "://" not in first:
        return f"{first}::{_inside(rest, name)}"
    return f"{first.rstrip('/')}/{name}{chained}{rest}"


def split(url: str) -> tuple[str, str]:
    """Return the URL of the folder that a file is in, and the name of the file.

    >>> split("zip://job/x::s3://bucket/a.zip"), split("simplecache::s3://bucket/job/x")
    (('zip://job::s3://bucket/a.zip', 'x'), ('simplecache::s3://bucket/job', 'x'))
    """
    first, chained, rest = url.partition("::")
    if chained and "://" not in first:
        folder, name = split(rest)
        return f"{first}::{folder}", name
    folder, _, name = first.rpartition("/")
    return f"{folder}{chained}{rest}", name


# ------------------------------------------------------------------ writing


def check_upload(url: str, *, overwrite: bool = True) -> None:
    """Raise for what can be known before anything is computed.

    Raises:
      TapeWriteError: If there is no such file system, or the file exists and must not be replaced.
    """
    with writing(url):
        files, path = file_system(_without_caches(url))
        if not overwrite and is_there(files, path):
            raise FileExistsError(path)


def upload(path: str, url: str, *, overwrite: bool = True) -> None:
    """Copy a complete local file to a URL, where at any time either the old file or the new one is, complete.

    Raises:
      TapeWriteError: If it cannot be written.
    """
    with writing(url):
        files, there = file_system(_without_caches(url))
        if not overwrite and is_there(files, there):
            raise FileExistsError(there)
        if protocol_of(url) in _ATOMIC:
            files.put_file(path, there, **_mode(files, overwrite))
            return
        temporary = f"{there}.{os.urandom(8).hex()}.unfinished"
        try:
            files.put_file(path, temporary)
            if not overwrite and is_there(files, there):  # since the upload began
                raise FileExistsError(there)
            files.mv(temporary, there)
        except BaseException:
            with suppress(Exception):  # what went wrong is more important
                files.rm_file(temporary)
            raise


def _without_caches(url: str) -> str:
    """Return a URL without the caches around its file system, which are for reading.

    >>> _without_caches("simplecache::s3://bucket/a.tape")
    's3://bucket/a.tape'
    """
    first, chained, rest = url.partition("::")
    return _without_caches(rest) if chained and "://" not in first else url


def _mode(files: Any, overwrite: bool) -> Mapping[str, str]:
    """Return the option by which a file system itself refuses to replace an object, if it has one."""
    return {"mode": "create"} if not overwrite and "mode" in signature(files.put_file).parameters else {}
