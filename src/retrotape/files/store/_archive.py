"""The zip around a tape: entries one after the other, stored as they are, each payload at a multiple of 64.

The same entries give the same bytes: dates and attributes are fixed. Sizes and positions from 4 GiB on are written as
zip64 has it, and only those.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from retrotape.files.store._format import ALIGN

LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64, LOCATOR = b"PK\x06\x06", b"PK\x06\x07"
LOCAL_HEAD = struct.Struct("<4sHHHHHIIIHH")
CENTRAL_HEAD = struct.Struct("<4sHHHHHHIIIHHHHHII")
END_HEAD = struct.Struct("<4sHHHHIIH")
END64_HEAD = struct.Struct("<4sQHHIIQQQQ")
LOCATOR_HEAD = struct.Struct("<4sIQI")
EXTRA_HEAD = struct.Struct("<HH")
ZIP64, PADDING = 0x0001, 0xD935  # ids of extra fields; the second is the one that Android's zipalign uses
FULL = 0xFFFFFFFF  # in a field of four bytes: look into the zip64 field
LARGE = FULL  # from here on a number is written so

_MADE_BY = 3 << 8 | 45  # Unix, so that the attributes mean something to `unzip`
_ATTRIBUTES = 0o100644 << 16
_DATE = 0 << 9 | 1 << 5 | 1  # 1980-01-01, the first that zip knows


class Output(Protocol):
    """What an archive is written to."""

    size: int

    def write(self, data: bytes | memoryview) -> None:
        """Append."""

    def rewrite(self, offset: int, data: bytes) -> None:
        """Overwrite."""


class _Entry(NamedTuple):
    name: bytes
    size: int
    start: int
    crc: int


class ArchiveWriter:
    """Writes entries in the order in which they are added, then the directory."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._entries: list[_Entry] = []

    def add(self, name: str, size: int, pieces: Iterable[bytes | memoryview]) -> None:
        """Write an entry of `size` bytes, which come in pieces."""
        entry = _Entry(name.encode("ascii"), size, self._output.size, 0)
        self._output.write(_local(entry))
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
            self._output.write(piece)
        entry = entry._replace(crc=crc)
        self._output.rewrite(entry.start, _local(entry))
        self._entries.append(entry)

    def finish(self) -> None:
        """Write the directory."""
        start = self._output.size
        directory = b"".join(map(_central, self._entries))
        self._output.write(directory)
        self._output.write(_end(start, len(directory), len(self._entries)))


def _local(entry: _Entry) -> bytes:
    large = entry.size >= LARGE
    extra = EXTRA_HEAD.pack(ZIP64, 16) + struct.pack("<QQ", entry.size, entry.size) if large else b""
    before = entry.start + LOCAL_HEAD.size + len(entry.name) + len(extra) + EXTRA_HEAD.size + 2
    gap = -before % ALIGN
    extra += EXTRA_HEAD.pack(PADDING, 2 + gap) + struct.pack("<H", ALIGN) + bytes(gap)
    size = FULL if large else entry.size
    needed = 45 if large else 10
    head = (LOCAL, needed, 0, 0, 0, _DATE, entry.crc, size, size, len(entry.name), len(extra))
    return LOCAL_HEAD.pack(*head) + entry.name + extra


def _central(entry: _Entry) -> bytes:
    large = entry.size >= LARGE
    far = entry.start >= LARGE
    wide = ([entry.size, entry.size] if large else []) + ([entry.start] if far else [])
    extra = EXTRA_HEAD.pack(ZIP64, 8 * len(wide)) + struct.pack(f"<{len(wide)}Q", *wide) if wide else b""
    size, start = FULL if large else entry.size, FULL if far else entry.start
    needed = 45 if wide else 10
    head = (CENTRAL, _MADE_BY, needed, 0, 0, 0, _DATE, entry.crc, size, size)
    tail = (len(entry.name), len(extra), 0, 0, 0, _ATTRIBUTES, start)
    return CENTRAL_HEAD.pack(*head, *tail) + entry.name + extra


def _end(start: int, size: int, count: int) -> bytes:
    far = start >= LARGE
    end = END_HEAD.pack(END, 0, 0, count, count, size, FULL if far else start, 0)
    if not far:
        return end
    record = END64_HEAD.pack(END64, END64_HEAD.size - 12, _MADE_BY, 45, 0, 0, count, count, size, start)
    return record + LOCATOR_HEAD.pack(LOCATOR, 0, start + size, 1) + end
