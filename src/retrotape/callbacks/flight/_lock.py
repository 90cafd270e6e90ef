"""Files that reserve something as long as a process lives, also if it is killed."""

from __future__ import annotations

import os
import time
from contextlib import suppress

try:
    import fcntl
except ImportError:  # Windows: only the age of a file shows that it was left behind
    fcntl = None  # type: ignore[assignment]

_OLD, _YOUNG = 24 * 3600.0, 10.0  # seconds; a young file is perhaps about to be locked


class Lock:
    """A file that must not exist yet, locked until it is removed. Threads of one process exclude each other too.

    Args:
      path: Its path.

    Raises:
      FileExistsError: If it exists.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the file."""
        with suppress(FileNotFoundError):
            os.remove(self._path)
        os.close(self._file)


def remove_if_left(path: str) -> None:
    """Remove the file of a lock whose process was killed."""
    with suppress(OSError):  # gone, or locked
        if fcntl is None:
            if time.time() - os.stat(path).st_mtime > _OLD:
                os.remove(path)
            return
        file = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(file).st_mtime > _YOUNG:
                os.remove(path)
        finally:
            os.close(file)
