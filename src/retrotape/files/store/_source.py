"""Where the bytes of an open tape come from, and how they are read."""

from __future__ import annotations

import hashlib
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from retrotape.files.store._files import read_at, read_into
from retrotape.files.store._format import ALIGN, PIECE
from retrotape.files.store._tables import Tables
from retrotape.files.store._where import Where

if TYPE_CHECKING:
    import numpy as np

_SHORTER = "the file became shorter while it was read"
# Large tensors get pages of their own: numpy asks for huge ones, and a virtual machine may take four times as long to
# find those as to read the file.
_PAGES = 1 << 20
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
Seen = Callable[[int], None]  # is told the size of every piece that has been verified


class Source(ABC):
    """An open tape. `tables` says what there is, `total` how many bytes `check` looks at."""

    tables: Tables
    total: int

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all entries but the tensors."""

    @abstractmethod
    def files(self) -> list[str]:
        """Return the paths of the files that it consists of."""

    @abstractmethod
    def entry(self, name: str) -> bytes:
        """Return an entry, its check sums verified."""

    @abstractmethod
    def array(self, name: str) -> tuple[np.ndarray, bool]:
        """Return the bytes of a part, not verified, and whether they are mapped: the same memory every time."""

    @abstractmethod
    def check(self, seen: Seen) -> None:
        """Verify every check sum, reading from the disk."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the file. Arrays that were given out stay."""


def read_exactly(where: Where, descriptor: int, start: int, size: int) -> bytes:
    """Return `size` bytes; the file had so many when it was opened."""
    data = read_at(descriptor, start, size)
    if len(data) != size:
        raise where.corrupt(_SHORTER)
    return data


def pieces(where: Where, descriptor: int, start: int, size: int) -> Iterator[bytes]:
    """Yield the same, a piece at a time."""
    for at in range(start, start + size, PIECE):
        yield read_exactly(where, descriptor, at, min(PIECE, start + size - at))


def read_aligned(where: Where, descriptor: int, start: int, size: int) -> np.ndarray:
    """Return the same in memory that begins at a multiple of 64."""
    found = _room(size)
    if read_into(descriptor, found.data, start) != size:
        raise where.corrupt(_SHORTER)
    return found


def _room(size: int) -> np.ndarray:
    import numpy as np

    if size >= _PAGES:
        try:
            return np.frombuffer(mmap.mmap(-1, size, **_PRIVATE), np.uint8)
        except OSError:
            pass  # as many mappings as a process may have
    room = np.empty(size + ALIGN, np.uint8)
    first = -room.ctypes.data % ALIGN
    return room[first : first + size]


def map_file(where: Where, descriptor: int, size: int) -> mmap.mmap | None:
    """Return the file as memory that may be written to without changing the file; None where that cannot be had."""
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    except ValueError:
        raise where.corrupt(_SHORTER) from None
    except OSError:  # no room for more mappings, or a file system without them
        return None


def check_sum(where: Where, what: str, data: bytes, digest: str, remedy: str | None = None) -> None:
    """Raise CorruptTapeError unless `data` has this sha256."""
    if hashlib.sha256(data).hexdigest() != digest:
        raise where.corrupt(f"the sha256 of {what} is wrong, so it was changed", remedy)
