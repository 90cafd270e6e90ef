"""Reading the directory of a zip without trusting it.

A zip says everything twice, and readers differ in whom they believe. Here both must agree, the entries must follow
each other from the first byte of the file to the directory, and the directory must end where the file ends. So there
is no second way to read the file, and no place to hide something.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from retrotape.files.store import _archive as zip_
from retrotape.files.store._files import read_at
from retrotape.files.store._format import ENTRY_NAME, Limits, shown
from retrotape.files.store._where import Where

_NAME_BYTES = 100
_EXTRA_BYTES = 256
_ENCRYPTED = 1


class Range(NamedTuple):
    """Where the payload of an entry lies in the file."""

    start: int
    size: int
    crc: int


class _Said(NamedTuple):
    """What the directory says of an entry."""

    name: str
    start: int
    size: int
    crc: int


def read_directory(where: Where, descriptor: int, size: int, limits: Limits) -> dict[str, Range]:
    """Return the payload of every entry, by name, in the order of the file."""
    start, length, count = _find(where, descriptor, size, limits)
    data = read_at(descriptor, start, length)
    if len(data) != length:
        raise where.corrupt("the file became shorter while it was read")
    found: dict[str, Range] = {}
    at = end = 0
    for _ in range(count):
        said, at = _central(where, data, at)
        if said.name in found:
            raise where.unsafe(f"the entry {said.name} is there twice")
        where.check_size(said.name, said.size, limits)
        _check_place(where, said, end, start)
        payload = _local(where, descriptor, said)
        end = payload + said.size
        if end > start:
            raise where.corrupt(f"the entry {said.name} reaches beyond the directory, so bytes are missing")
        found[said.name] = Range(payload, said.size, said.crc)
    if at != length:
        raise where.corrupt(f"the directory of the archive has {length} bytes, and its {count} entries take {at}")
    if end != start:
        raise where.unsafe(f"{start - end} bytes before the directory of the archive belong to no entry")
    return found


def _check_place(where: Where, said: _Said, end: int, directory: int) -> None:
    if said.start >= directory:
        raise where.corrupt(f"the entry {said.name} is said to begin at byte {said.start}, after all entries")
    if said.start < end:
        raise where.unsafe(f"the entry {said.name} overlaps the one before it")
    if said.start > end:
        what = "come before the first entry" if end == 0 else f"before the entry {said.name} belong to none"
        raise where.unsafe(f"{said.start - end} bytes {what}")


def _find(where: Where, descriptor: int, size: int, limits: Limits) -> tuple[int, int, int]:
    """Return where the directory begins, how long it is, and how many entries it has."""
    if size == 0:
        raise where.corrupt("it is empty")
    begin = read_at(descriptor, 0, 8)
    if not begin.startswith(zip_.LOCAL[: len(begin)]):
        raise where.corrupt(f"it begins with {shown(begin)}, so it is no tape", "Give the path of a saved tape.")
    wide = zip_.END64_HEAD.size + zip_.LOCATOR_HEAD.size
    tail = read_at(descriptor, max(0, size - wide - zip_.END_HEAD.size), wide + zip_.END_HEAD.size)
    if len(tail) < zip_.END_HEAD.size or not tail[-zip_.END_HEAD.size :].startswith(zip_.END):
        raise where.corrupt(
            f"it has {size} bytes and does not end as a tape does: it was cut short or something follows"
        )
    at = size - zip_.END_HEAD.size
    _, disk, first_disk, here, count, length, start, comment = zip_.END_HEAD.unpack(tail[-zip_.END_HEAD.size :])
    if disk or first_disk or here != count or comment:
        raise where.unsafe("the archive claims to have several parts or a comment")
    if start == zip_.FULL:
        at -= wide
        start, length = _find64(where, tail[: -zip_.END_HEAD.size], at, length, count)
    if count > limits.entries:
        raise where.over("the number of entries is too high", count, limits.entries, "entries")
    if start + length != at:
        raise where.corrupt(f"the directory is said to lie at {start} to {start + length}, and it ends at {at}")
    if length > count * (zip_.CENTRAL_HEAD.size + _NAME_BYTES + _EXTRA_BYTES):
        raise where.unsafe(f"the directory of the archive has {length} bytes, too many for {count} entries")
    return start, length, count


def _find64(where: Where, tail: bytes, at: int, length: int, count: int) -> tuple[int, int]:
    wide = zip_.END64_HEAD.size
    if at < 0 or not (tail.startswith(zip_.END64) and tail.startswith(zip_.LOCATOR, wide)):
        raise where.corrupt("the zip64 record that the archive speaks of is not there")
    _, size, _, _, disk, first_disk, here, all_, length64, start = zip_.END64_HEAD.unpack(tail[:wide])
    _, its_disk, its_place, disks = zip_.LOCATOR_HEAD.unpack(tail[wide:])
    if (its_place, its_disk, disks, size, disk, first_disk) != (at, 0, 1, wide - 12, 0, 0):
        raise where.unsafe("the zip64 record of the archive is not where and what it should be")
    if (here, all_, length64) != (count, count, length) or start < zip_.LARGE:
        raise where.unsafe("the two end records of the archive do not agree")
    return start, length


def _central(where: Where, data: bytes, at: int) -> tuple[_Said, int]:
    """Return what the directory says of the entry at `at`, and where the next begins."""
    head = data[at : at + zip_.CENTRAL_HEAD.size]
    if len(head) != zip_.CENTRAL_HEAD.size or not head.startswith(zip_.CENTRAL):
        raise where.corrupt(f"the directory of the archive cannot be read at its byte {at}")
    _, _, _, flags, method, _, _, crc, packed, size, named, extra, comment, disk, _, _, start = (
        zip_.CENTRAL_HEAD.unpack(head)
    )
    at += zip_.CENTRAL_HEAD.size
    raw = data[at : at + named]
    name = _name(where, raw)
    _check_method(where, name, flags, method)
    if comment or disk:
        raise where.unsafe(f"the entry {name} has a comment or lies on another disk")
    fields = _extra(where, name, data[at + named : at + named + extra], extra)
    wide = [value == zip_.FULL for value in (size, packed, start)]
    size, packed, start = _widen(where, name, fields, (size, packed, start), wide)
    if size != packed:
        raise where.unsafe(f"the entry {name} has {packed} bytes that become {size}, so it is compressed")
    return _Said(name, start, size, crc), at + named + extra


def _local(where: Where, descriptor: int, said: _Said) -> int:
    """Return where the payload of an entry begins, once what stands before it agrees with the directory."""
    head = read_at(descriptor, said.start, zip_.LOCAL_HEAD.size + _NAME_BYTES + _EXTRA_BYTES)
    if len(head) < zip_.LOCAL_HEAD.size or not head.startswith(zip_.LOCAL):
        raise where.corrupt(f"the entry {said.name} does not begin at byte {said.start}, where it should")
    at = zip_.LOCAL_HEAD.size
    _, _, flags, method, _, _, crc, packed, size, named, extra = zip_.LOCAL_HEAD.unpack(head[:at])
    if head[at : at + named] != said.name.encode():
        raise where.unsafe(f"the entry {said.name} is called {shown(head[at : at + named])} in another place")
    _check_method(where, said.name, flags, method)
    fields = _extra(where, said.name, head[at + named : at + named + extra], extra)
    wide = [value == zip_.FULL for value in (size, packed)]
    size, packed = _widen(where, said.name, fields, (size, packed), wide)
    if (size, packed, crc) != (said.size, said.size, said.crc):
        raise where.corrupt(f"the size or check sum of the entry {said.name} is not the same in two places")
    return said.start + at + named + extra


def _name(where: Where, raw: bytes) -> str:
    name = raw.decode("latin-1")
    if not ENTRY_NAME.fullmatch(name):
        raise where.unsafe(f"{shown(raw)} is no name for an entry")
    return name


def _check_method(where: Where, name: str, flags: int, method: int) -> None:
    if flags & _ENCRYPTED:
        raise where.unsafe(f"the entry {name} is encrypted")
    if flags:
        raise where.unsafe(f"the entry {name} has the flags {flags:#06x}, and none are allowed")
    if method:
        raise where.unsafe(f"the entry {name} is compressed (method {method})")


def _extra(where: Where, name: str, data: bytes, length: int) -> dict[int, bytes]:
    """Return the extra fields of an entry by id."""
    fields: dict[int, bytes] = {}
    if len(data) != length:
        raise where.corrupt(f"the extra field of the entry {name} is cut short or too long")
    at = 0
    while at < len(data):
        head = data[at : at + zip_.EXTRA_HEAD.size]
        if len(head) < zip_.EXTRA_HEAD.size:
            raise where.corrupt(f"the extra field of the entry {name} is cut short")
        kind, size = zip_.EXTRA_HEAD.unpack(head)
        at += zip_.EXTRA_HEAD.size
        if kind not in (zip_.ZIP64, zip_.PADDING) or kind in fields:
            raise where.unsafe(f"the entry {name} has the extra field {kind:#06x}, which may change what it is")
        fields[kind] = data[at : at + size]
        at += size
    if at != len(data):
        raise where.corrupt(f"the extra field of the entry {name} is cut short")
    if fields.get(zip_.PADDING, b"")[2:].strip(b"\0"):
        raise where.unsafe(f"the padding before the entry {name} is not empty")
    return fields


def _widen(
    where: Where, name: str, fields: dict[int, bytes], values: tuple[int, ...], wide: list[bool]
) -> tuple[int, ...]:
    """Return sizes and places, those that did not fit taken from the zip64 field."""
    given = fields.get(zip_.ZIP64)
    if (given is not None) != any(wide) or len(given or b"") != 8 * sum(wide):
        raise where.unsafe(f"the zip64 field of the entry {name} does not fit what it is for")
    larger = iter(struct.unpack(f"<{sum(wide)}Q", given or b""))
    return tuple(next(larger) if is_wide else value for value, is_wide in zip(values, wide, strict=True))
