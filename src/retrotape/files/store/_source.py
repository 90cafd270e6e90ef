"""Where the bytes of an open tape come from, and how they are read."""

from __future__ import annotations

import hashlib
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from retrotape.files.store._errors import TapeErrors
from retrotape.files.store._files import read_at, read_into
from retrotape.files.store._format import ALIGN, PIECE
from retrotape.files.store._tables import Tables

if TYPE_CHECKING:
    import numpy as np

_SHORTER = "the file became shorter while it was read"
# Large tensors get pages of their own: numpy requests huge pages, and a virtual machine may take four times as
# long to allocate those as to read the file.
_PAGES = 1 << 20
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
Progress = Callable[[int], None]  # called with the size of every piece that has been verified


class Source(ABC):
    """An open tape. `tables` lists what is in it, `total` is how many bytes `check` verifies."""

    tables: Tables
    total: int

    @abstractmethod
    def files(self) -> list[str]:
        """Return the paths of the files that it consists of."""

    @abstractmethod
    def entry(self, name: str) -> bytes:
        """Return an entry, its checksum verified."""

    @abstractmethod
    def array(self, name: str) -> tuple[np.ndarray, bool]:
        """Return the bytes of a part, not verified, and whether they are mapped: the same memory every time."""

    @abstractmethod
    def check(self, progress: Progress) -> None:
        """Verify every checksum, reading from the disk."""

    @abstractmethod
    def close(self) -> None:
        """Close the file. Arrays that were returned stay valid."""


def read_exactly(errors: TapeErrors, descriptor: int, start: int, size: int) -> bytes:
    """Return `size` bytes, which the file had when it was opened."""
    data = read_at(descriptor, start, size)
    if len(data) != size:
        raise errors.corrupt(_SHORTER)
    return data


def pieces(errors: TapeErrors, descriptor: int, start: int, size: int) -> Iterator[bytes]:
    """Yield the same bytes, a piece at a time."""
    for at in range(start, start + size, PIECE):
        yield read_exactly(errors, descriptor, at, min(PIECE, start + size - at))


def read_aligned(errors: TapeErrors, descriptor: int, start: int, size: int) -> np.ndarray:
    """Return the same bytes, at an address that is a multiple of 64."""
    found = _allocate(size)
    if read_into(descriptor, found.data, start) != size:
        raise errors.corrupt(_SHORTER)
    return found


def _allocate(size: int) -> np.ndarray:
    import numpy as np

    if size >= _PAGES:
        try:
            return np.frombuffer(mmap.mmap(-1, size, **_PRIVATE), np.uint8)
        except OSError:
            pass  # the process has reached its limit of mappings
    memory = np.empty(size + ALIGN, np.uint8)
    first = -memory.ctypes.data % ALIGN
    return memory[first : first + size]


def map_file(errors: TapeErrors, descriptor: int, size: int) -> mmap.mmap | None:
    """Return the file as memory that may be written to without changing the file; None where that is not possible."""
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    except ValueError:
        raise errors.corrupt(_SHORTER) from None
    except OSError:  # too many mappings, or a file system without them
        return None


def check_digest(errors: TapeErrors, what: str, found: str, expected: str, remedy: str | None = None) -> None:
    """Raise CorruptTapeError unless the two digests are the same."""
    if found != expected:
        raise errors.corrupt(f"the sha256 of {what} is wrong, so it was changed", remedy)


def digest_of(data: bytes | memoryview) -> str:
    """Return the sha256 of some bytes."""
    return hashlib.sha256(data).hexdigest()
