"""A tape in a folder: `tape.json`, and the store that holds its bytes."""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import TYPE_CHECKING

from retrotape.files.store._blobs import locate, open_blob, place
from retrotape.files.store._errors import TapeErrors
from retrotape.files.store._files import open_file
from retrotape.files.store._format import TAPE, Limits, TensorInfo
from retrotape.files.store._json import unseal
from retrotape.files.store._source import (
    Progress,
    Source,
    check_digest,
    digest_of,
    map_file,
    pieces,
    read_aligned,
    read_exactly,
)
from retrotape.files.store._tables import field, read_tables

if TYPE_CHECKING:
    import numpy as np

_MAP_FROM = 1 << 16  # smaller ones are read: a process has only so many mappings
_REPAIR = "Remove that file, and save the tape again."


class FolderSource(Source):
    """Reads `tape.json` when it is opened, all else on demand."""

    def __init__(self, errors: TapeErrors, mapped: bool, limits: Limits) -> None:
        self._errors, self._mapped = errors, mapped
        self._mappings: dict[str, mmap.mmap] = {}
        self._tape = self._read_tape(limits)
        fields = unseal(errors, self._tape, limits)
        self.tables = read_tables(errors, fields, limits)
        if "blobs" not in self.tables.features:
            raise errors.corrupt("it is a folder, and its tape.json is that of a file")
        self._store = locate(errors, field(errors, fields, "store"))
        self._blobs = {(info.sha256, info.nbytes): info for info in self.tables.parts.values()}
        self.total = sum(info.nbytes for info in [*self.tables.entries.values(), *self._blobs.values()])

    def files(self) -> list[str]:
        digests = {info.sha256 for info in [*self.tables.entries.values(), *self._blobs.values()]}
        return [os.path.join(self._errors.path, TAPE), *(place(self._store, digest) for digest in sorted(digests))]

    def entry(self, name: str) -> bytes:
        if name == TAPE:
            return self._tape
        info = self.tables.entries[name]
        descriptor = self._open(info)
        try:
            data = read_exactly(self._errors, descriptor, 0, info.nbytes)
        finally:
            os.close(descriptor)
        check_digest(self._errors, f"the entry {name} ({_name(info)})", digest_of(data), info.sha256, _REPAIR)
        return data

    def array(self, name: str) -> tuple[np.ndarray, bool]:
        import numpy as np

        info = self.tables.parts[name]
        mapping = self._mappings.get(name)
        if mapping is None:
            descriptor = self._open(info)
            try:
                if self._mapped and info.nbytes >= _MAP_FROM:
                    mapping = map_file(self._errors, descriptor, info.nbytes)
                if mapping is None:
                    return read_aligned(self._errors, descriptor, 0, info.nbytes), False
            finally:
                os.close(descriptor)
            mapping = self._mappings.setdefault(name, mapping)  # another thread may have been here
        return np.frombuffer(mapping, np.uint8), True

    def check(self, progress: Progress) -> None:
        for name, info in self.tables.entries.items():
            self.entry(name)
            progress(info.nbytes)
        for info in self._blobs.values():
            descriptor, digest = self._open(info), hashlib.sha256()
            try:
                for piece in pieces(self._errors, descriptor, 0, info.nbytes):
                    digest.update(piece)
                    progress(len(piece))
            finally:
                os.close(descriptor)
            check_digest(self._errors, _name(info), digest.hexdigest(), info.sha256, _REPAIR)

    def close(self) -> None:
        self._mappings.clear()  # no file is open between two calls

    def _read_tape(self, limits: Limits) -> bytes:
        errors = self._errors
        try:
            descriptor, size = open_file(errors, os.path.join(errors.path, TAPE))
        except FileNotFoundError:
            raise errors.corrupt(f"it is a folder without {TAPE}", "Give the path of a saved tape.") from None
        try:
            errors.check_size(TAPE, size, limits)
            return read_exactly(errors, descriptor, 0, size)
        finally:
            os.close(descriptor)

    def _open(self, info: TensorInfo) -> int:
        try:
            descriptor, size = open_blob(self._errors, self._store, info.sha256)
        except (FileNotFoundError, NotADirectoryError):
            raise self._errors.corrupt(f"{_name(info)} is missing") from None
        if size != info.nbytes:
            os.close(descriptor)
            raise self._errors.corrupt(f"{_name(info)} has {size} bytes, not {info.nbytes}", _REPAIR)
        return descriptor


def _name(info: TensorInfo) -> str:
    return f"{info.sha256[:2]}/{info.sha256} in its store"
