"""File systems behind URLs, by fsspec, with errors of this library."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retrotape.errors import RetrotapeError, TapeWriteError, UrlError

# What has to be installed beside fsspec, by protocol.
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
    "sftp": "paramiko",
    "ssh": "paramiko",
}
_CHAINED = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.\-]*(?:://|::))")  # between the parts of a chained URL
_QUERY = re.compile(r"[?#]")  # where a query or a fragment begins
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://\S+")


def without_secrets(url: str) -> str:
    """Return a URL without user name, password, query and fragment, for messages and names of files.

    >>> without_secrets("sftp://me:p@ss@host/a.tape"), without_secrets("https://host/a.tape?signature=abc")
    ('sftp://…@host/a.tape', 'https://host/a.tape')
    """
    return "::".join(map(_masked, _CHAINED.split(url)))


def _masked(part: str) -> str:
    """Return a part of a chained URL without secrets; where it has two readings, with less rather than more."""
    protocol, found, rest = part.partition("://")
    if not found:
        return part
    path, *dropped = _QUERY.split(rest, maxsplit=1)
    if "@" in rest:
        host, slash, inside = path.partition("/")
        if ":" in host or not slash:  # perhaps a password, in which slashes and question marks are not escaped
            path = "…" if dropped and "@" in dropped[0] else _after_login(path)
        else:
            path = f"{_after_login(host)}/{inside}"
    return f"{protocol}://{path}"


def _after_login(text: str) -> str:
    return f"…@{text.rpartition('@')[2]}" if "@" in text else text


def _without_secrets_of(url: str, text: str) -> str:
    """Return the text of an error about a URL without the secrets in this and in any other URL that it names."""
    text = text.replace(url, without_secrets(url))
    for part in _CHAINED.split(url):
        query = _QUERY.search(part)
        if query is not None and len(part) > query.end():  # some errors quote a URL without its host
            text = text.replace(part[query.end() :], "…")
    return _URL.sub(lambda found: without_secrets(found[0]), text)


def protocol_of(url: str) -> str:
    """Return the protocol of the last file system of a URL.

    >>> protocol_of("simplecache::s3://bucket/a.tape")
    's3'
    """
    return _CHAINED.split(url)[-1].partition("://")[0].lower()


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path on it. Call this inside `reading` or `writing`."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        problem = f"{protocol_of(url)}:// needs fsspec, which is not installed"
        raise _Unusable(problem, 'Install it: `pip install "retrotape[fsspec]"`.') from None
    try:
        files, path = url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(protocol_of(url))
        remedy = "Install what it names." if package is None else f"Install it: `pip install {package}`."
        raise _Unusable(f"a package is missing ({error})", remedy) from error
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        remedy = "Use one that fsspec has, such as `s3://`, or `fsspec.register_implementation` for your own."
        raise _Unusable(f"the protocol {protocol_of(url)!r} is not known", remedy) from None
    files.invalidate_cache()  # fsspec shares file systems, and some remember what was there earlier
    return files, path


def is_there(files: Any, path: str) -> bool:
    """Return whether a file exists. The method of fsspec is not used: it says no where access is denied."""
    try:
        files.info(path)
    except FileNotFoundError:
        return False
    return True


def read_at_most(files: Any, path: str, nbytes: int) -> bytes:
    """Return what a file begins with, however long it is: some file systems do not know the size in advance."""
    size = files.info(path).get("size")
    found: bytes = files.cat_file(path) if size is not None and size <= nbytes else files.cat_file(path, 0, nbytes)
    return found[:nbytes]


class _Unusable(Exception):
    """A file system that cannot be used, and what to do about it."""


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn every error of a file system into a UrlError."""
    try:
        yield
    except RetrotapeError:
        raise
    except Exception as error:  # each file system has exceptions of its own
        raise UrlError(without_secrets(url), *_described(error, url)) from error


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Turn every error of a file system into a TapeWriteError."""
    try:
        yield
    except RetrotapeError:
        raise
    except Exception as error:  # each file system has exceptions of its own
        problem, remedy = _described(error, url)
        raise TapeWriteError(without_secrets(url), problem, remedy, getattr(error, "errno", None)) from error


def _described(error: Exception, url: str) -> tuple[str, str]:
    """Return what is wrong with a URL, and what to do."""
    if isinstance(error, _Unusable):
        return error.args[0], error.args[1]
    text = " ".join(_without_secrets_of(url, str(error)).split())
    if isinstance(error, FileNotFoundError):
        return "it does not exist", "Check the name, and that of the bucket or host."
    if isinstance(error, FileExistsError):
        return "it exists already", "Choose another name, or `overwrite=True`."
    if isinstance(error, PermissionError):
        return f"access is denied ({text})", "Check your credentials, and that they allow this."
    if isinstance(error, NotImplementedError):
        return "this file system cannot do that", "Save to a local file and copy it, or use another file system."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space is left ({text})", "Free some space, or set `RETROTAPE_CACHE` to a folder on another disk."
    problem = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return problem.rstrip("."), "Check the connection and your credentials, and try again."
