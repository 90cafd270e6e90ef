"""Opening and reading files that may be hostile."""

from __future__ import annotations

import os
import stat

from retrotape._locks import new_lock
from retrotape.files.store._errors import TapeErrors

# Opening a FIFO must not block; neither flag exists on Windows, which relies on `lstat` alone.
READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
READ |= getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def kind_of(errors: TapeErrors, path: str) -> int:
    """Return S_IFREG or S_IFDIR; raise UnsafeTapeError for anything else."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise errors.unsafe(
            f"{os.path.basename(path)} is a symbolic link, which may change while it is read",
            f"Open the file itself: {os.path.realpath(path)!r}.",
        )
    return _check_kind(errors, mode)


def _check_kind(errors: TapeErrors, mode: int) -> int:
    kind = stat.S_IFMT(mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        what = _KINDS.get(kind, "something else")
        raise errors.unsafe(f"it is {what}, not a file", "Copy the tape to a file and open that.")
    return kind


def open_file(errors: TapeErrors, path: str) -> tuple[int, int]:
    """Return the descriptor and the size of a regular file that is no symbolic link."""
    if kind_of(errors, path) != stat.S_IFREG:
        raise errors.unsafe(f"{os.path.basename(path)} in it is a directory, not a file")
    descriptor = os.open(path, READ)
    try:
        status = os.fstat(descriptor)  # of the open file, whatever was at the path before
        if _check_kind(errors, status.st_mode) != stat.S_IFREG:
            raise errors.unsafe("it turned into a directory while it was opened")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Return `size` bytes from `offset` on; fewer where the file ends. Threads may share the descriptor."""
    pieces = []
    while size > 0:
        piece = _pread(descriptor, min(size, 1 << 30), offset)  # the kernel takes less than 2 GiB at once
        if not piece:
            break
        pieces.append(piece)
        offset, size = offset + len(piece), size - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_into(descriptor: int, view: memoryview, offset: int) -> int:
    """Fill `view` from `offset` on; return how many bytes there were: fewer where the file ends."""
    done = 0
    while done < len(view):
        got = _pread_into(descriptor, view[done : done + (1 << 30)], offset + done)
        if not got:
            break
        done += got
    return done


def _pread_into(descriptor: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], offset)
    data = _pread(descriptor, min(len(view), 1 << 20), offset)  # which is copied
    view[: len(data)] = data
    return len(data)


if hasattr(os, "pread"):
    _pread = os.pread
else:  # Windows
    _one_at_a_time = new_lock()

    def _pread(fd: int, length: int, offset: int, /) -> bytes:
        with _one_at_a_time:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, length)
