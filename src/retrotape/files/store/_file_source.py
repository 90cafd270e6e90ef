"""A tape in one file."""

from __future__ import annotations

import hashlib
import mmap
import os
import weakref
from typing import TYPE_CHECKING

from retrotape._locks import new_lock
from retrotape.files.store._errors import TapeErrors
from retrotape.files.store._files import open_file, read_at
from retrotape.files.store._format import TAPE, Limits
from retrotape.files.store._json import unseal
from retrotape.files.store._layout import FRONT_BYTES, check_header, find_tape, lay_out
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
from retrotape.files.store._tables import entry_info, read_tables

if TYPE_CHECKING:
    import numpy as np


class FileSource(Source):
    """Reads `tape.json` and the header when it is opened, all else on demand."""

    def __init__(self, errors: TapeErrors, mapped: bool, limits: Limits) -> None:
        self._errors, self._mapped = errors, mapped
        self._mapping: mmap.mmap | None = None
        self._lock = new_lock()  # two threads must not map the file twice
        self._descriptor, self.total = open_file(errors, errors.path)
        self._finalize = weakref.finalize(self, os.close, self._descriptor)  # also without a call of `close`
        try:
            front = read_at(self._descriptor, 0, FRONT_BYTES)
            self._begin, nbytes = find_tape(errors, front, self.total, limits)
            tape = read_exactly(errors, self._descriptor, self._begin, nbytes)
            self.tables = read_tables(errors, unseal(errors, tape, limits), limits)
            self._layout = lay_out(nbytes, self.tables.entries, self.tables.parts)
            self._check_header()
        except BaseException:
            self.close()
            raise
        self._infos = {TAPE: entry_info(nbytes, digest_of(tape)), **self.tables.entries, **self.tables.parts}

    def files(self) -> list[str]:
        return [self._errors.path]

    def entry(self, name: str) -> bytes:
        info = self._infos[name]
        data = read_exactly(self._errors, self._descriptor, self._layout.starts[name], info.nbytes)
        check_digest(self._errors, f"the entry {name}", digest_of(data), info.sha256)
        return data

    def array(self, name: str) -> tuple[np.ndarray, bool]:
        import numpy as np

        start, nbytes = self._layout.starts[name], self._infos[name].nbytes
        if self._mapped and nbytes:
            with self._lock:
                mapping = self._mapping = self._mapping or map_file(self._errors, self._descriptor, self.total)
            if mapping is not None:
                return np.frombuffer(mapping, np.uint8, nbytes, start), True
        return read_aligned(self._errors, self._descriptor, start, nbytes), False

    def check(self, progress: Progress) -> None:
        self._check_header()
        end = self._begin
        progress(end)
        for name, start in self._layout.starts.items():
            what = f"the entry {name}" if name == TAPE or name in self.tables.entries else f"tensor {name}"
            if read_exactly(self._errors, self._descriptor, end, start - end).strip(b"\0"):
                raise self._errors.corrupt(f"the padding before {what} is not zeros")
            progress(start - end)
            info, digest = self._infos[name], hashlib.sha256()
            for piece in pieces(self._errors, self._descriptor, start, info.nbytes):
                digest.update(piece)
                progress(len(piece))
            check_digest(self._errors, what, digest.hexdigest(), info.sha256)
            end = start + info.nbytes

    def close(self) -> None:
        self._finalize()
        self._mapping = None  # a live array keeps it

    def _check_header(self) -> None:
        found = read_exactly(self._errors, self._descriptor, 0, self._begin)
        check_header(self._errors, found, self.total, self._layout)
