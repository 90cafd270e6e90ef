"""The log on disk: snapshots of the state, and the batches since; enough to run the last steps again.

Two files take turns. Each begins with a snapshot, and the batches of the steps after it follow: starting a new
snapshot overwrites the older file, so that one is whole at any time. A file consists of records, each of them a header
with the bytes of some arrays after it:

==========  =====  ===================================================================
magic       4      "RTFL"
kind        1      1: a snapshot, 2: a batch
layout      4      which names, dtypes and shapes the arrays have (a JSON file beside)
generation  8      the number of the snapshot; other records in the file are left over
step        8      the snapshot is the state before this step; the batch is that of this step
count       4      of arrays
checksum    8      of what follows
crc         4      of the header up to here
==========  =====  ===================================================================

Then come the lengths of the arrays, 8 bytes each, and the arrays themselves.

What a process has written survives it, since the system holds it. A record that a kill, or a crash of the machine, cut
off is recognized by its checksum, and so is the end of the log. Plain writes, not mapped memory: a full disk is then an
error that can be caught, and not a signal that ends the training.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from itertools import pairwise
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

STATE, BATCH = 1, 2
_MAGIC = b"RTFL"
_HEAD, _CRC = Struct("<4sBIQQIQ"), Struct("<I")
_SIZE = _HEAD.size + _CRC.size
_AT_ONCE = 512  # buffers that one call writes; systems allow 1024
_MASK = 2**64 - 1

Buffer = Any  # bytes, or the memory of an array


class Record(NamedTuple):
    """A record that was read, and found whole."""

    kind: int
    layout: int
    generation: int
    step: int
    buffers: list[Buffer]


class Log:
    """The writing end.

    Args:
      folder: An existing folder.
    """

    def __init__(self, folder: str) -> None:
        self._files = [open(os.path.join(folder, name), "w+b", buffering=0) for name in NAMES]  # noqa: SIM115
        self.generation = 0  # the number of the newest snapshot
        self.bytes = 0  # of the batches since the snapshot

    def snapshot(self, step: int, layout: int, arrays: Sequence[Any]) -> None:
        """Start anew with the state before a step, in the older file."""
        self.generation += 1
        self._file.seek(0)
        self._write(STATE, step, layout, arrays)
        self.bytes = 0

    def batch(self, step: int, layout: int, arrays: Sequence[Any]) -> None:
        """Append the batch of a step, before it runs."""
        self.bytes += self._write(BATCH, step, layout, arrays)

    def records(self) -> list[Record]:
        """Return the snapshot and the batches after it."""
        return read(self._file.name)

    @property
    def _file(self) -> Any:
        return self._files[self.generation % 2]

    def _write(self, kind: int, step: int, layout: int, arrays: Sequence[Any]) -> int:
        buffers = [as_bytes(array) for array in arrays]
        buffers = [np.array([len(buffer) for buffer in buffers], "<u8").tobytes(), *buffers]
        head = _HEAD.pack(_MAGIC, kind, layout, self.generation, step, len(arrays), checksum(buffers))
        _write_all(self._file.fileno(), [head + _CRC.pack(zlib.crc32(head)), *buffers])
        return sum(map(len, buffers))

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


NAMES = ("log-0", "log-1")


def _write_all(file: int, buffers: list[Buffer]) -> None:
    for begin in range(0, len(buffers), _AT_ONCE):
        some = buffers[begin : begin + _AT_ONCE]
        missing = sum(map(len, some)) - os.writev(file, some)
        if missing:  # the disk is nearly full, or the record longer than what a call writes
            rest = memoryview(b"".join(some))[-missing:]
            while rest:
                rest = rest[os.write(file, rest) :]


def as_bytes(array: Any) -> Buffer:
    """Return the bytes of an array; those of text as lengths, then characters."""
    array = np.asarray(array)
    if array.dtype.hasobject:
        texts = [item.encode() if isinstance(item, str) else bytes(item) for item in array.ravel()]
        return b"".join([np.array([len(text) for text in texts], "<i8").tobytes(), *texts])
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b""


def as_array(buffer: Buffer, dtype: Any, shape: Sequence[int]) -> Any:
    """Return the array that `as_bytes` was given.

    >>> as_array(as_bytes(np.array([[b"two", b""]], object)), np.dtype(object), [1, 2])
    array([[b'two', b'']], dtype=object)
    """
    if not np.dtype(dtype).hasobject:
        return np.frombuffer(buffer, dtype).reshape(shape)
    count = int(np.prod(shape, dtype=np.int64))
    ends = np.cumsum([8 * count, *np.frombuffer(buffer[: 8 * count], "<i8")])
    found = np.empty(count, object)
    found[:] = [bytes(buffer[begin:end]) for begin, end in pairwise(ends)]
    return found.reshape(shape)


def checksum(buffers: Sequence[Buffer]) -> int:
    """Return a number that a part of other bytes, such as those of an older record, changes.

    A sum of words, as a CRC of a large batch would take longer than writing it.

    >>> checksum([b"eight by", b"tes"]) == checksum([b"eight by", b"tez"])
    False
    """
    found = 0
    for buffer in buffers:
        whole = len(buffer) // 8 * 8
        words = int(np.add.reduce(np.frombuffer(buffer[:whole], "<u8"), dtype=np.uint64)) if whole else 0
        found = (found * 1_000_003 + words + zlib.crc32(buffer[whole:]) + len(buffer)) & _MASK
    return found


# ------------------------------------------------------------------ reading


def read(path: str) -> list[Record]:
    """Return a snapshot and the batches after it, up to the first record that is not whole, or was left over."""
    found: list[Record] = []
    if not os.path.exists(path):
        return found
    with open(path, "rb") as file:
        while True:
            record = _next(file, os.fstat(file.fileno()).st_size)
            if record is None or not _follows(record, found):
                return found
            found.append(record)


def _follows(one: Record, earlier: Sequence[Record]) -> bool:
    if not earlier:
        return one.kind == STATE
    step = earlier[-1].step + (len(earlier) > 1)  # the first batch has the step of the snapshot
    return one.kind == BATCH and one.generation == earlier[0].generation and one.step == step


def _next(file: Any, size: int) -> Record | None:
    head = file.read(_SIZE)
    if len(head) < _SIZE or _CRC.unpack(head[_HEAD.size :])[0] != zlib.crc32(head[: _HEAD.size]):
        return None
    magic, kind, layout, generation, step, count, expected = _HEAD.unpack(head[: _HEAD.size])
    if magic != _MAGIC or 8 * count > size - file.tell():
        return None
    table = file.read(8 * count)
    lengths = np.frombuffer(table, "<u8").tolist()
    if sum(lengths) > size - file.tell():
        return None
    buffers = [file.read(length) for length in lengths]
    whole = checksum([table, *buffers]) == expected
    return Record(kind, layout, generation, step, buffers) if whole else None
