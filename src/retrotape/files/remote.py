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
_LOGIN = re.compile(r"://[^/@]*@")


def without_login(url: str) -> str:
    """Return a URL without user name and password, for messages.

    >>> without_login("sftp://me:secret@host/a.tape")
    'sftp://…@host/a.tape'
    """
    return _LOGIN.sub("://…@", url)


def protocol_of(url: str) -> str:
    """Return the protocol of the last file system of a URL.

    >>> protocol_of("simplecache::s3://bucket/a.tape")
    's3'
    """
    return url.rpartition("::")[2].partition("://")[0].lower()


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
        raise UrlError(without_login(url), *_described(error)) from error


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Turn every error of a file system into a TapeWriteError."""
    try:
        yield
    except RetrotapeError:
        raise
    except Exception as error:  # each file system has exceptions of its own
        problem, remedy = _described(error)
        raise TapeWriteError(without_login(url), problem, remedy, getattr(error, "errno", None)) from error


def _described(error: Exception) -> tuple[str, str]:
    """Return what is wrong, and what to do."""
    if isinstance(error, _Unusable):
        return error.args[0], error.args[1]
    text = without_login(" ".join(str(error).split()))
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
