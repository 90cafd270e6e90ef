"""Atomic replacement of files: at any time either the old one or the new one is there, complete.

The new one is written under another name in the same directory and renamed when it is on the disk. A process that is
killed leaves an unfinished file behind; the next one that writes there removes it. It can tell such a file from one
that is being written: the writing process holds a lock on it, and the kernel drops the locks of a process that ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import IO

if sys.platform != "win32":
    import fcntl

_TEMPORARY = re.compile(r"\.retrotape-[0-9]+-[0-9a-f]{16}\.tmp")
_FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
Explain = Callable[[bool], AbstractContextManager[None]]  # turns errors into others; is the new file there by then?


class Replacement:
    """A new file that takes the place of `path` once it is complete; without `commit` it is removed.

    Use it in a `with` block and call `commit` at its end.
    """

    def __init__(
        self,
        path: str,
        *,
        overwrite: bool = True,
        temporary_in: str | None = None,
        explain: Explain = lambda _: contextlib.nullcontext(),
    ) -> None:
        """Begin a file.

        Args:
          path: Its final path.
          overwrite: Whether it may replace another.
          temporary_in: Where it is written; a folder on the same file system that the caller has swept.
          explain: Returns the context in which the operating system is asked for something.
        """
        self.size = 0
        self._path, self._overwrite, self._explain = path, overwrite, explain
        self._directory = os.path.dirname(path) or "."
        self._descriptor = -1
        with explain(False):
            if temporary_in is None:
                sweep(self._directory)
            self._temporary, self._descriptor = _create(temporary_in or self._directory, _mode_of(path))

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        with self._explain(False):
            self.size += _write_all(self._descriptor, data)

    def stream(self) -> IO[bytes]:
        """Return a file that writes it, for what does not take bytes alone; close it before `commit`."""
        return open(self._descriptor, "r+b", closefd=False)

    def rewrite(self, offset: int, data: bytes) -> None:
        """Overwrite the bytes at `offset` with `data`."""
        with self._explain(False):
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            _write_all(self._descriptor, data)
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def commit(self, *, sync: bool = True) -> None:
        """Make it the file at `path`, flushed to the disk; with `sync=False` its name is flushed later."""
        with self._explain(False):
            os.fsync(self._descriptor)
            if sys.platform == "win32":
                self._close()  # an open file cannot be renamed there; elsewhere the lock is held to the end
            if self._overwrite:
                os.replace(self._temporary, self._path)
            else:
                _rename_without_overwriting(self._temporary, self._path)
            self._close()
        if sync:
            with self._explain(True), contextlib.suppress(FileNotFoundError):  # deleted by now, but it was complete
                sync_directory(self._directory)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._close()
            os.unlink(self._temporary)  # it is not there after a commit
        with contextlib.suppress(OSError):
            self._close()


def replace_file(path: str, data: bytes, *, temporary_in: str | None = None, sync: bool = True) -> None:
    """Write a file so that it is whole or not there, also after a crash of the machine; arguments as above."""
    with Replacement(path, temporary_in=temporary_in) as output:
        output.write(data)
        output.commit(sync=sync)


def sweep(directory: str) -> None:
    """Remove the unfinished files of processes that have ended."""
    with os.scandir(directory) as found:
        left = [item.path for item in found if _TEMPORARY.fullmatch(item.name)]
    for path in left:
        with contextlib.suppress(OSError):  # another process sweeps too, or the file is not ours to remove
            descriptor = os.open(path, _FLAGS | getattr(os, "O_NONBLOCK", 0))
            try:
                if _lock(descriptor):
                    os.unlink(path)
            finally:
                os.close(descriptor)


def sync_directory(directory: str) -> None:
    """Flush the names in a directory to the disk."""
    if sys.platform == "win32":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not support this
            raise
    finally:
        os.close(descriptor)


def _mode_of(path: str) -> int | None:
    """Return the permissions of a file, which its replacement gets too; None if there is none."""
    with contextlib.suppress(OSError):
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode):  # the mode of a link is not that of its target
            return mode & 0o777 | 0o600
    return None


def _create(directory: str, mode: int | None) -> tuple[str, int]:
    while True:
        path = os.path.join(directory, f".retrotape-{os.getpid()}-{os.urandom(8).hex()}.tmp")
        descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            # Another process may have swept between the lines. Then the file has lost its name: make another one.
            if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
                if mode is not None:
                    with contextlib.suppress(OSError):
                        os.chmod(path, mode)
                return path, descriptor
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int) -> bool | None:
    """Return whether the lock was acquired; None where the file system has no locks, so nothing is ever swept."""
    if sys.platform == "win32":
        return True  # not needed: an open file cannot be removed there
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _rename_without_overwriting(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, this fails where a file is
    except FileExistsError:
        raise
    except OSError:  # no hard links on this file system
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.replace(temporary, path)
    else:
        os.unlink(temporary)


def _write_all(descriptor: int, data: bytes | memoryview) -> int:
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.write(descriptor, view[done:])
    return done
