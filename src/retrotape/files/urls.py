"""Tapes behind URLs: everything that fsspec opens, such as `s3://bucket/a.tape`."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from inspect import signature
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from retrotape.errors import UrlError
from retrotape.files.remote import file_system, is_there, protocol_of, reading, without_secrets, writing

_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.\-]*::)*[A-Za-z][A-Za-z0-9+.\-]+://")  # one letter would be a drive
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
        shown = without_secrets(url)
        remedy = f"Write three slashes for a path from the root: `file:///{shown.partition('://')[2]}`."
        raise UrlError(shown, f"{urlsplit(shown).netloc!r} stands where a host would", remedy)
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
            _move(files, temporary, there)
        except BaseException:
            with suppress(Exception):  # what went wrong is more important
                files.rm_file(temporary)
            raise


def _move(files: Any, path: str, to: str) -> None:
    """Rename a file; the method that fsspec has for all file systems takes `[1]` in a name for a pattern."""
    from fsspec import AbstractFileSystem

    if type(files).mv is AbstractFileSystem.mv:
        files.cp_file(path, to)
        files.rm_file(path)
    else:
        files.mv(path, to)


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
