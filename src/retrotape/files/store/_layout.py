"""The file as one safetensors file: where everything in it is, and the header that describes it to stock readers.

They require that tensors follow each other without gaps; we need each to begin at a multiple of 64. So the gaps are
tensors too, of zeros, named `pad/0`, `pad/1` and so on.

All of this follows from `tape.json`. So no header is ever parsed here: it is built from what `tape.json` lists and
compared byte by byte. No other header is accepted, and a hostile one never becomes an object in memory. Only its
first item is matched against a fixed pattern, to find `tape.json` itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from retrotape.files.store._errors import TapeErrors
from retrotape.files.store._format import ALIGN, PAD, TAPE, Limits, Sized, in_order, quoted, stored_as

FRONT_BYTES = 128  # enough for the length of the header and its first item
_FRONT = re.compile(rb'(?s:.{8})\{"tape\.json":\{"dtype":"U8","shape":\[([1-9]\d{0,14})\],"data_offsets":\[0,\1\]\}')
_NO_TAPE = "Give the path of a saved tape."


class Layout(NamedTuple):
    """The expected layout of the file.

    Attributes:
      header: Its first bytes: the length of the header and the header.
      starts: Where everything begins, in the order of the file; the bytes between two are zeros.
      size: How long the file is.
    """

    header: bytes
    starts: dict[str, int]
    size: int


def lay_out(tape_bytes: int, entries: Mapping[str, Sized], tensors: Mapping[str, Sized]) -> Layout:
    """Return where everything goes: `tape.json`, the entries, the tensors by name, each at a multiple of 64.

    >>> from retrotape.files.store import TensorInfo
    >>> layout = lay_out(3, {}, {"b": TensorInfo("int8", (1,), 1, "")})
    >>> layout.header[8:].decode().count('"pad/0":{"dtype":"U8","shape":[61],"data_offsets":[3,64]}')
    1
    """
    items: list[str] = []
    offsets: dict[str, int] = {}
    at = pads = 0
    for name, dtype, shape, nbytes in _rows(tape_bytes, entries, tensors):
        gap = -at % ALIGN
        if gap:
            items.append(_item(f"{PAD}{pads}", "U8", (gap,), at, at + gap))
            pads, at = pads + 1, at + gap
        items.append(_item(name, dtype, shape, at, at + nbytes))
        offsets[name] = at
        at += nbytes
    text = f"{{{','.join(items)}}}".encode()
    text += b" " * (-(len(text) + 8) % ALIGN)
    header = len(text).to_bytes(8, "little") + text
    return Layout(header, {name: len(header) + offset for name, offset in offsets.items()}, len(header) + at)


def _rows(
    tape_bytes: int, entries: Mapping[str, Sized], tensors: Mapping[str, Sized]
) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    yield TAPE, "U8", (tape_bytes,), tape_bytes
    for named, order in ((entries, in_order(entries)), (tensors, sorted(tensors))):
        for name in order:
            found = named[name]
            yield name, *stored_as(found.dtype, found.shape), found.nbytes


def _item(name: str, dtype: str, shape: tuple[int, ...], start: int, end: int) -> str:
    return f'"{name}":{{"dtype":"{dtype}","shape":[{",".join(map(str, shape))}],"data_offsets":[{start},{end}]}}'


def find_tape(errors: TapeErrors, front: bytes, size: int, limits: Limits) -> tuple[int, int]:
    """Return where `tape.json` begins and how many bytes it has, both within the file and the limits.

    Args:
      errors: Those about the tape.
      front: The first FRONT_BYTES of the file, or all.
      size: How long the file is.
      limits: The limits on the header and on `tape.json`.
    """
    if not front:
        raise errors.corrupt("it is empty", _NO_TAPE)
    found = _FRONT.match(front)
    if found is None:
        raise errors.corrupt(f"it begins with {quoted(front[:24])}, so it is not a tape or was cut short", _NO_TAPE)
    start, tape_bytes = 8 + int.from_bytes(front[:8], "little"), int(found[1])
    if start + tape_bytes > size:
        raise errors.corrupt(f"it was cut short: it has {size} bytes, and {TAPE} ends at byte {start + tape_bytes}")
    if start > limits.header_bytes:
        raise errors.over("the header is too large", start, limits.header_bytes, "header_bytes")
    errors.check_size(TAPE, tape_bytes, limits)
    return start, tape_bytes


def check_header(errors: TapeErrors, found: bytes, size: int, expected: Layout) -> None:
    """Raise CorruptTapeError unless the file begins with the expected header, and has the expected size.

    Args:
      errors: Those about the tape.
      found: The file up to the data: the length of the header and the header.
      size: How long the file is.
      expected: What follows from `tape.json`.
    """
    if found != expected.header:
        at = _first_difference(found, expected.header)
        got, wanted = quoted(found[at : at + 20]), quoted(expected.header[at : at + 20])
        raise errors.corrupt(f"the header has {got} at byte {at}, and according to {TAPE} it should be {wanted}")
    if size != expected.size:
        what = "it was cut short" if size < expected.size else "something was appended"
        raise errors.corrupt(f"{what}: it has {size} bytes and should have {expected.size}")


def _first_difference(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:  # in time that grows with the length: each step compares half of what is left
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
