"""Local copies of what is behind URLs.

An entry is named after the URL and what the file system says about the version there, so a new version is a new entry.
It is downloaded under another name, checked for its length, and renamed: whatever has the name of an entry is complete.
Entries are in a folder of their own, so that nothing else in `RETROTAPE_CACHE` is ever touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from retrotape.errors import UrlError
from retrotape.files.remote import without_secrets

DIRECTORY = "RETROTAPE_CACHE"  # environment variables: the folder,
SIZE = "RETROTAPE_CACHE_BYTES"  # and how large it may become
_DEFAULT_SIZE = 10 * 2**30
_ENTRIES = "tapes-v1"  # the folder of the entries, in that folder
_ENTRY = re.compile(r"[0-9a-f]{32}-[A-Za-z0-9._-]{1,80}")
_UNFINISHED = re.compile(r"\.unfinished-[0-9]+-[0-9a-f]{16}")
_ABANDONED = 86_400  # seconds after which an unfinished download has no owner any more

_VERSIONS = ("ETag", "etag", "e_tag", "md5Hash", "Content-MD5", "content_md5", "generation", "version_id", "VersionId")
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "created", "updated")


def directory(url: str) -> str:
    """Return the folder of the entries; it is made if it is not there, for its owner alone.

    Args:
      url: What is to be downloaded, for messages.

    Raises:
      UrlError: If others can write there, and so could exchange a copy.
    """
    around = os.environ.get(DIRECTORY) or os.path.join(_users_caches(), "retrotape", "urls")
    around = os.path.abspath(os.path.expanduser(around))
    os.makedirs(around, mode=0o700, exist_ok=True)
    _check_owner(url, around, os.stat(around), stat.S_ISVTX)
    found = os.path.join(around, _ENTRIES)
    with contextlib.suppress(FileExistsError):
        os.mkdir(found, 0o700)
    _check_owner(url, found, os.lstat(found))
    return found


def _check_owner(url: str, folder: str, found: os.stat_result, enough: int = 0) -> None:
    """Raise if a folder is none, or others can write to it.

    Args:
      url: What is to be downloaded.
      folder: The path of the folder.
      found: What the system says of it.
      enough: Bits of its mode with which others may write: in `/tmp`, say, nobody can rename what others own.
    """
    problem = ""
    if not stat.S_ISDIR(found.st_mode):
        problem = "is no folder"
    elif os.name == "posix" and found.st_uid not in (os.geteuid(), 0):
        problem = "belongs to another user"
    elif os.name == "posix" and found.st_mode & 0o022 and not found.st_mode & enough:
        problem = "can be written to by other users"
    if problem:
        remedy = f"Set `{DIRECTORY}` to a folder of your own that only you can write to (`chmod go-w`)."
        raise UrlError(without_secrets(url), f"the folder for copies, {folder!r}, {problem}", remedy)


def _users_caches() -> str:
    home = os.path.expanduser("~")
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches")
    return os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")


def version_of(info: Mapping[str, Any]) -> list[str]:
    """Return what distinguishes this version of a file from others; a new list each time if nothing does."""
    return known_version(info) or [os.urandom(16).hex()]


def known_version(info: Mapping[str, Any]) -> list[str] | None:
    """Return what distinguishes this version of a file from others, or None if the file system does not say.

    A time in whole seconds says nothing about a file that was written a moment ago: another version may follow within
    the same second.
    """
    versions = [f"{name}={info[name]}" for name in _VERSIONS if info.get(name)]
    strong = [one for one in versions if '=W/"' not in one]
    times = [(name, info[name]) for name in _TIMES if info.get(name) is not None]
    if strong or any(_is_settled(when) for _, when in times):
        return [*versions, *(f"{name}={when}" for name, when in times), f"size={info.get('size')}"]
    return None


def _is_settled(when: Any) -> bool:
    if isinstance(when, datetime):
        when = when.timestamp()
    if isinstance(when, bool) or not isinstance(when, (int, float)):
        return False
    return when != int(when) or time.time() - when > 2


def entry(url: str, version: list[str], fetch: Callable[[str], None], *, is_whole: Callable[[str], bool]) -> str:
    """Return the path of an entry.

    Args:
      url: What it is a copy of.
      version: What identifies the version there.
      fetch: Downloads it to a path, or raises.
      is_whole: Returns whether what is at a path is complete; a copy may have lost its end in a power failure.
    """
    folder = directory(url)
    key = hashlib.sha256(json.dumps([url, version]).encode()).hexdigest()[:32]
    path = os.path.join(folder, f"{key}-{_readable(url)}")
    if _is_there(path, is_whole):
        with contextlib.suppress(OSError):  # the cache may be read-only
            os.utime(path)  # what was used last is removed last
        return path
    temporary = os.path.join(folder, f".unfinished-{os.getpid()}-{os.urandom(8).hex()}")
    try:
        fetch(temporary)
        _rename(temporary, path, is_whole)
    finally:
        _remove(temporary)
    _shrink(folder, path)
    return path


def _is_there(path: str, is_whole: Callable[[str], bool]) -> bool:
    return os.path.lexists(path) and not os.path.islink(path) and is_whole(path)


def _readable(url: str) -> str:
    """Return the end of a URL as part of the name of a file, which others may see."""
    last = without_secrets(url).partition("::")[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "_", last)[-80:] or "tape"


def _rename(temporary: str, path: str, is_whole: Callable[[str], bool]) -> None:
    try:
        os.replace(temporary, path)
    except OSError:
        if _is_there(path, is_whole):  # another process has put it there
            return
        _remove(path)
        os.replace(temporary, path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _limit() -> int:
    given = os.environ.get(SIZE, "")
    return int(given) if given.isdigit() else _DEFAULT_SIZE


def _shrink(folder: str, keep: str) -> None:
    """Remove unfinished downloads that nobody finishes, and the entries used longest ago if there are too many.

    Only what has a name that this module gives is removed: people put other things into folders.
    """
    found: list[tuple[float, int, str]] = []
    with os.scandir(folder) as items:
        for item in items:
            with contextlib.suppress(OSError):  # another process removes entries too
                used = item.stat(follow_symlinks=False).st_mtime
                if item.is_symlink():
                    continue
                if _ENTRY.fullmatch(item.name):
                    found.append((used, _size(item.path), item.path))
                elif _UNFINISHED.fullmatch(item.name) and time.time() - used > _ABANDONED:
                    _remove(item.path)
    total, limit = sum(size for _, size, _ in found), _limit()
    for _, size, path in sorted(found):
        if total <= limit:
            return
        if path != keep:
            _remove(path)
            total -= size


def _size(path: str) -> int:
    """Return the size of an entry: a file, or a folder of files."""
    if not os.path.isdir(path):
        return os.lstat(path).st_size
    return sum(os.lstat(os.path.join(path, name)).st_size for name in os.listdir(path))
