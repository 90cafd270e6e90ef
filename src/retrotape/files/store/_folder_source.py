"""A tape in a folder: `tape.json`, and the store where its bytes lie."""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import TYPE_CHECKING

from retrotape.files.store._blobs import locate, open_blob, place
from retrotape.files.store._files import open_file
from retrotape.files.store._format import TAPE, Limits, in_order
from retrotape.files.store._json import unseal
from retrotape.files.store._source import Seen, Source, check_sum, map_file, pieces, read_aligned, read_exactly
from retrotape.files.store._tables import field, read_tables
from retrotape.files.store._where import Where

if TYPE_CHECKING:
    import numpy as np

_MAP_FROM = 1 << 16  # smaller ones are read: a process has only so many mappings
_REPAIR = "Remove that file, and save the tape again."


class FolderSource(Source):
    """Reads `tape.json` at once, all else on demand."""

    def __init__(self, where: Where, mapped: bool, limits: Limits) -> None:
        self._where, self._mapped, self._limits = where, mapped, limits
        self._mappings: dict[str, mmap.mmap] = {}
        self._tape = self._read_tape()
        fields = unseal(where, self._tape, limits)
        self.tables = read_tables(where, fields, limits)
        if "blobs" not in self.tables.features:
            raise where.corrupt("it is a folder, and its tape.json belongs into a file")
        self._store = locate(where, field(where, fields, "store"))
        self._files = sorted({(info.sha256, info.nbytes) for info in self.tables.parts.values()})
        self.total = sum(nbytes for _, nbytes in self._files)

    def names(self) -> list[str]:
        return [*in_order(self.tables.sha256), TAPE]

    def files(self) -> list[str]:
        digests = {*self.tables.sha256.values(), *(digest for digest, _ in self._files)}
        return [os.path.join(self._where.path, TAPE), *(place(self._store, digest) for digest in sorted(digests))]

    def entry(self, name: str) -> bytes:
        if name == TAPE:
            return self._tape
        digest = self.tables.sha256[name]
        descriptor, size = self._open(digest)
        try:
            self._where.check_size(name, size, self._limits)
            data = read_exactly(self._where, descriptor, 0, size)
        finally:
            os.close(descriptor)
        check_sum(self._where, f"the entry {name} ({_called(digest)})", data, digest, _REPAIR)
        return data

    def array(self, name: str) -> tuple[np.ndarray, bool]:
        import numpy as np

        info = self.tables.parts[name]
        mapping = self._mappings.get(name)
        if mapping is None:
            descriptor = self._open_part(info.sha256, info.nbytes)
            try:
                if self._mapped and info.nbytes >= _MAP_FROM:
                    mapping = map_file(self._where, descriptor, info.nbytes)
                if mapping is None:
                    return read_aligned(self._where, descriptor, 0, info.nbytes), False
            finally:
                os.close(descriptor)
            mapping = self._mappings.setdefault(name, mapping)  # another thread may have been here
        return np.frombuffer(mapping, np.uint8), True

    def check(self, seen: Seen) -> None:
        for name in self.tables.sha256:
            self.entry(name)
        for digest, nbytes in self._files:
            descriptor, found = self._open_part(digest, nbytes), hashlib.sha256()
            try:
                for piece in pieces(self._where, descriptor, 0, nbytes):
                    found.update(piece)
                    seen(len(piece))
            finally:
                os.close(descriptor)
            if found.hexdigest() != digest:
                raise self._where.corrupt(f"the sha256 of {_called(digest)} is wrong, so it was changed", _REPAIR)

    def close(self) -> None:
        self._mappings.clear()  # no file is open between two questions

    def _read_tape(self) -> bytes:
        where = self._where
        try:
            descriptor, size = open_file(where, os.path.join(where.path, TAPE))
        except FileNotFoundError:
            raise where.corrupt(f"it is a folder without {TAPE}", "Give the path of a saved tape.") from None
        try:
            where.check_size(TAPE, size, self._limits)
            return read_exactly(where, descriptor, 0, size)
        finally:
            os.close(descriptor)

    def _open(self, digest: str) -> tuple[int, int]:
        try:
            return open_blob(self._where, self._store, digest)
        except (FileNotFoundError, NotADirectoryError):
            raise self._where.corrupt(f"{_called(digest)} is missing") from None

    def _open_part(self, digest: str, nbytes: int) -> int:
        descriptor, size = self._open(digest)
        if size != nbytes:
            os.close(descriptor)
            raise self._where.corrupt(f"{_called(digest)} has {size} bytes, not {nbytes}", _REPAIR)
        return descriptor


def _called(digest: str) -> str:
    return f"{digest[:2]}/{digest} in its store"
