"""A tape in one file."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import weakref
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from retrotape.files.store._directory import Range, read_directory
from retrotape.files.store._files import open_file
from retrotape.files.store._format import ALIGN, TAPE, TENSORS, Limits
from retrotape.files.store._json import unseal
from retrotape.files.store._safetensors import Layout, check_header, lay_out
from retrotape.files.store._source import Seen, Source, check_sum, map_file, pieces, read_aligned, read_exactly
from retrotape.files.store._tables import read_tables
from retrotape.files.store._where import Where

if TYPE_CHECKING:
    import numpy as np


class FileSource(Source):
    """Reads directory, `tape.json` and the header of the tensors at once, all else on demand."""

    def __init__(self, where: Where, mapped: bool, limits: Limits) -> None:
        self._where, self._mapped = where, mapped
        self._mapping: mmap.mmap | None = None
        self._lock = threading.Lock()  # two threads must not map the file twice
        self._descriptor, self._size = open_file(where, where.path)
        self._finalize = weakref.finalize(self, os.close, self._descriptor)  # also when nobody calls `close`
        try:
            self._ranges = read_directory(where, self._descriptor, self._size, limits)
            for name in (TAPE, TENSORS):
                if name not in self._ranges:
                    raise where.corrupt(f"it has no entry {name}")
            self.tables = read_tables(where, unseal(where, self._read(TAPE), limits), limits)
            _check_entries(where, self._ranges, self.tables.sha256)
            self._layout = self._check_header(limits)
        except BaseException:
            self.close()
            raise
        self.total = sum(found.size for found in self._ranges.values())

    def names(self) -> list[str]:
        return [name for name in self._ranges if name != TENSORS]

    def files(self) -> list[str]:
        return [self._where.path]

    def entry(self, name: str) -> bytes:
        data = self._read(name)
        if name != TAPE:  # which has its own, verified when it was opened
            check_sum(self._where, f"the entry {name}", data, self.tables.sha256[name])
        return data

    def array(self, name: str) -> tuple[np.ndarray, bool]:
        import numpy as np

        start = self._ranges[TENSORS].start + self._layout.starts[name]
        nbytes = self.tables.parts[name].nbytes
        if self._mapped and nbytes and not start % ALIGN:
            with self._lock:
                mapping = self._mapping = self._mapping or map_file(self._where, self._descriptor, self._size)
            if mapping is not None:
                return np.frombuffer(mapping, np.uint8, nbytes, start), True
        return read_aligned(self._where, self._descriptor, start, nbytes), False

    def check(self, seen: Seen) -> None:
        for name, found in self._ranges.items():
            if name == TENSORS:
                self._check_tensors(found, seen)
            else:
                self.entry(name)
                seen(found.size)

    def close(self) -> None:
        self._finalize()
        self._mapping = None  # an array that is alive keeps it

    def _read(self, name: str) -> bytes:
        start, size, crc = self._ranges[name]
        data = read_exactly(self._where, self._descriptor, start, size)
        if zlib.crc32(data) != crc:
            raise self._where.corrupt(f"the check sum of the entry {name} is wrong, so it was changed")
        return data

    def _check_header(self, limits: Limits) -> Layout:
        """Return where the tensors lie, once the file says the same."""
        layout, found = lay_out(self.tables.parts), self._ranges[TENSORS]
        length = len(layout.header)
        if length > limits.header_bytes:
            raise self._where.over(f"the header of {TENSORS} is too large", length, limits.header_bytes, "header_bytes")
        begin = read_exactly(self._where, self._descriptor, found.start, min(length, found.size))
        check_header(self._where, begin, found.size, layout)
        return layout

    def _check_tensors(self, found: Range, seen: Seen) -> None:
        where, layout = self._where, self._layout
        crc, end = zlib.crc32(layout.header), len(layout.header)
        seen(end)
        for name, start in layout.starts.items():
            gap = read_exactly(where, self._descriptor, found.start + end, start - end)
            if gap.strip(b"\0"):
                raise where.corrupt(f"the gap before tensor {name} is not empty")
            crc, digest, info = zlib.crc32(gap, crc), hashlib.sha256(), self.tables.parts[name]
            seen(len(gap))
            for piece in pieces(where, self._descriptor, found.start + start, info.nbytes):
                crc = zlib.crc32(piece, crc)
                digest.update(piece)
                seen(len(piece))
            if digest.hexdigest() != info.sha256:
                raise where.corrupt(f"the sha256 of tensor {name} is wrong, so it was changed")
            end = start + info.nbytes
        if crc != found.crc:
            raise where.corrupt(f"the check sum of the entry {TENSORS} is wrong, so it was changed")


def _check_entries(where: Where, ranges: Mapping[str, Range], sha256: Mapping[str, str]) -> None:
    there, said = ranges.keys() - {TAPE, TENSORS}, sha256.keys()
    if there - said:
        raise where.unsafe(f"{TAPE} does not know the entry {min(there - said)}")
    if said - there:
        raise where.corrupt(f"the entry {min(said - there)} is missing")
