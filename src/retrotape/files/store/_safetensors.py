"""`tensors.safetensors`: where each tensor lies, and the header that says so to stock readers.

They want tensors to follow each other without gaps; we want each to begin at a multiple of 64. So the gaps are tensors
too, of zeros, named `pad/0`, `pad/1` and so on.

All of this follows from what `tape.json` says of the tensors. So nobody here reads a header: it is made again and
compared, byte by byte. No header can say anything else, and a hostile one never becomes an object in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import NamedTuple

from retrotape.files.store._format import ALIGN, PAD, TAPE, TENSORS, Sized, shown, stored_as
from retrotape.files.store._where import Where


class Layout(NamedTuple):
    """The file as it has to be.

    Attributes:
      header: What stands before the tensors.
      starts: Where each tensor begins in the file, in the order of the file; what lies between two is zeros.
      size: How long the file is.
    """

    header: bytes
    starts: dict[str, int]
    size: int


def lay_out(tensors: Mapping[str, Sized]) -> Layout:
    """Return where tensors go: sorted by name, each at a multiple of 64.

    >>> from retrotape.files.store import TensorInfo
    >>> layout = lay_out({"a": TensorInfo("int8", (3,), 3, ""), "b": TensorInfo("int8", (1,), 1, "")})
    >>> layout.header[8:].decode().count('"pad/0":{"dtype":"U8","shape":[61],"data_offsets":[3,64]}')
    1
    """
    items: list[str] = []
    starts: dict[str, int] = {}
    at = pads = 0
    for name in sorted(tensors):
        gap = -at % ALIGN
        if gap:
            items.append(_item(f"{PAD}{pads}", "U8", (gap,), at, at + gap))
            pads, at = pads + 1, at + gap
        tensor = tensors[name]
        items.append(_item(name, *stored_as(tensor.dtype, tensor.shape), at, at + tensor.nbytes))
        starts[name] = at
        at += tensor.nbytes
    text = f"{{{','.join(items)}}}".encode()
    text += b" " * (-(len(text) + 8) % ALIGN)
    header = len(text).to_bytes(8, "little") + text
    return Layout(header, {name: len(header) + start for name, start in starts.items()}, len(header) + at)


def _item(name: str, dtype: str, shape: tuple[int, ...], start: int, end: int) -> str:
    return f'"{name}":{{"dtype":"{dtype}","shape":[{",".join(map(str, shape))}],"data_offsets":[{start},{end}]}}'


def check_header(where: Where, found: bytes, size: int, expected: Layout) -> None:
    """Raise CorruptTapeError unless the file begins with the header that it has to have, and has its size.

    Args:
      where: The tape.
      found: As many bytes of the file as the header should have, or all.
      size: How long the file is.
      expected: What follows from `tape.json`.
    """
    if found != expected.header:
        same = takewhile(lambda pair: pair[0] == pair[1], zip(found, expected.header, strict=False))
        at = sum(1 for _ in same)
        got, wanted = shown(found[at : at + 20]), shown(expected.header[at : at + 20])
        raise where.corrupt(f"the header of {TENSORS} reads {got} at byte {at}, and {TAPE} asks for {wanted}")
    if size != expected.size:
        raise where.corrupt(f"{TENSORS} has {size} bytes, and its tensors need {expected.size}")
