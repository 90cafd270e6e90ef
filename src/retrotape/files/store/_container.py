"""An open tape, as bytes: what is in it, each piece verified before it is returned."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from retrotape.errors import TapeUseError
from retrotape.files.store._errors import TapeErrors
from retrotape.files.store._file_source import FileSource
from retrotape.files.store._files import kind_of
from retrotape.files.store._folder_source import FolderSource
from retrotape.files.store._format import (
    DEFAULT_LIMITS,
    STRING,
    STRING_DATA,
    STRING_OFFSETS,
    TAPE,
    Limits,
    TensorInfo,
    in_order,
    quoted,
)
from retrotape.files.store._json import parse
from retrotape.files.store._source import Source

if TYPE_CHECKING:
    import numpy as np


def open_tape(path: str | os.PathLike[str], *, mmap: bool = False, limits: Limits = DEFAULT_LIMITS) -> Container:
    """Open a saved tape without trusting it, and without reading its tensors.

    Args:
      path: The file or folder that `write` made.
      mmap: Map tensors instead of reading them, if the disk is trusted. A file that is cut short while it is
        mapped ends the process (SIGBUS), and one that is changed in place changes what was verified. `write` does
        neither: it replaces the old file with a new one.
      limits: The limits beyond which a tape is refused.

    Returns:
      A `Container`. Use it in a `with` block, or close it.

    Raises:
      CorruptTapeError: If it is damaged or not a tape.
      UnsafeTapeError: If it is forged, or exceeds a limit.
      TapeVersionError: If it needs a newer retrotape.
    """
    errors = TapeErrors(os.fsdecode(path))
    if "\0" in errors.path:
        raise errors.corrupt("no file has the character NUL in its name", "Give the path of a saved tape.")
    folder = kind_of(errors, errors.path) == stat.S_IFDIR
    source: Source = FolderSource(errors, mmap, limits) if folder else FileSource(errors, mmap, limits)
    return Container(errors, source, limits)


class Container:
    """An open tape; `open_tape` returns it.

    Attributes:
      path: Where it is.
      features: What a reader has to support.
      meta: The `meta` that `write` was called with.
      tensors: Dtype, shape, size and digest of each tensor, by name.
    """

    def __init__(self, errors: TapeErrors, source: Source, limits: Limits = DEFAULT_LIMITS) -> None:
        self._errors, self._source, self._limits = errors, source, limits
        self._verified: set[str] = set()
        self._closed = False
        self.path: str = errors.path
        self.features: tuple[str, ...] = source.tables.features
        self.meta: dict[str, Any] = source.tables.meta
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(source.tables.tensors)

    def names(self) -> list[str]:
        """Return the names of all entries, in the order of the file."""
        return [TAPE, *in_order(self._source.tables.entries)]

    def files(self) -> list[str]:
        """Return the paths of the files that it consists of: one, or those of a folder and its store."""
        return self._source.files()

    def entry(self, name: str) -> bytes:
        """Return an entry, its checksum verified.

        Raises:
          CorruptTapeError: If there is no such entry, or if it is not what was written.
        """
        self._check_open()
        if name not in self.names():
            raise self._errors.corrupt(f"it has no entry {quoted(name)}, only {', '.join(self.names())}")
        return self._source.entry(name)

    def document(self, name: str) -> Any:
        """Return the value of an entry that is JSON, its checksum verified.

        Raises:
          CorruptTapeError: If there is no such entry, if it is not what was written, or not JSON.
          UnsafeTapeError: If it exceeds a limit, or is ambiguous.
        """
        return parse(self._errors, name, self.entry(name), self._limits)

    def tensor(self, name: str) -> np.ndarray:
        """Return the bytes of a tensor as uint8, from an address that is a multiple of 64.

        Each call reads and verifies it, and returns a new array. Mapped, it is verified the first time and every call
        returns the same memory; it may be written to, and the file does not change. Both stay valid when the container
        is closed.

        Raises:
          CorruptTapeError: If there is no such tensor, if it holds strings, or if it is not what was written.
        """
        if self._dtype(name) == STRING:
            raise self._errors.corrupt(f"tensor {name} holds strings", f"Call `strings({name!r})`.")
        return self._part(name)

    def strings(self, name: str) -> list[bytes]:
        """Return the elements of a tensor of strings, row by row.

        Raises:
          CorruptTapeError: If there is no such tensor, if it holds no strings, or if it is not what was written.
        """
        if self._dtype(name) != STRING:
            raise self._errors.corrupt(
                f"tensor {name} holds {self._dtype(name)}, not strings", f"Call `tensor({name!r})`."
            )
        ends, data = self._part(STRING_OFFSETS + name).view("<i8").tolist(), self._part(STRING_DATA + name).tobytes()
        pairs = list(pairwise(ends))
        if ends[0] != 0 or ends[-1] != len(data) or any(start > end for start, end in pairs):
            raise self._errors.corrupt(f"the offsets of the string tensor {name} are not in order")
        return [data[start:end] for start, end in pairs]

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Verify every checksum, reading everything from the disk.

        Args:
          progress: Called with how many bytes have been verified, and how many there are.

        Raises:
          CorruptTapeError: If anything is not what was written.
        """
        self._check_open()
        done = 0

        def advance(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done, self._source.total)

        self._source.check(advance)

    def close(self) -> None:
        """Close the file. Arrays that were returned stay valid."""
        self._closed = True
        self._source.close()

    def __enter__(self) -> Container:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{'closed' if self._closed else 'open'} tape {self.path!r}: {len(self.tensors)} tensors>"

    def _dtype(self, name: str) -> str:
        info = self.tensors.get(name)  # names come from the file too, so a wrong one means that the file is damaged
        if info is None:
            raise self._errors.corrupt(f"it has no tensor {quoted(name)}")
        return info.dtype

    def _part(self, name: str) -> np.ndarray:
        self._check_open()
        found, mapped = self._source.array(name)
        if mapped and name in self._verified:
            return found
        info = self._source.tables.parts[name]
        if hashlib.sha256(found.data).hexdigest() != info.sha256:
            raise self._errors.corrupt(f"the sha256 of tensor {name} is wrong, so it was changed")
        if info.dtype == "bool" and found.size and found.max() > 1:  # a C++ bool that is neither is undefined behaviour
            raise self._errors.unsafe(f"tensor {name} of bool holds bytes other than 0 and 1")
        self._verified.add(name)
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise TapeUseError(f"The tape {self.path} was closed. Open it again: `open_tape({self.path!r})`.")
