"""What is to be written, checked before the first byte is."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

from retrotape.errors import TapeWriteError
from retrotape.files.store._format import (
    ENTRY_NAME,
    FEATURES,
    LETTERS,
    OFFSETS,
    RANK_LIMIT,
    RESERVED,
    STORABLE,
    STRING,
    TAPE,
    TENSOR_NAME,
    TENSORS,
    Data,
    Limits,
    Stored,
    in_order,
    shown,
    size_of,
)
from retrotape.files.store._safetensors import lay_out
from retrotape.files.store._tables import OWN


class Part(NamedTuple):
    """A tensor as bytes; one of strings has become two of them."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    data: Data


class Planned(NamedTuple):
    """Everything that goes into a tape."""

    entries: dict[str, bytes]
    parts: dict[str, Part]
    strings: dict[str, tuple[int, ...]]
    features: list[str]
    meta: dict[str, Any]


class Refused(Exception):
    """Carries a problem and its remedy to where the path is known."""


def plan(
    path: str, entries: Mapping[str, bytes], tensors: Iterable[Stored], meta: Mapping[str, Any], limits: Limits
) -> Planned:
    """Return what is to be written; raise TapeWriteError if a reader would refuse it."""
    try:
        ordered = _entries(entries, limits)
        parts, strings = split(tensors)
        total = sum(part.nbytes for part in parts.values())
        if len(parts) > limits.tensors:
            raise Refused(f"{len(parts):,} tensors are more than {limits.tensors:,}", "Save fewer.")
        if limits.total_bytes is not None and total > limits.total_bytes:
            raise Refused(f"the tensors have {total:,} bytes, more than {limits.total_bytes:,}", "Save fewer.")
        own = sorted((set(meta) & OWN) - {"features"})
        if own:
            raise Refused(f"the fields {', '.join(own)} are made here", "Give them other names.")
        features = sorted(meta.get("features", ()))
        if not FEATURES.issuperset(features):
            raise Refused(f"the features {shown(features)} are unknown", "Add them to `store._format.FEATURES`.")
    except Refused as refused:
        raise TapeWriteError(path, *refused.args) from None
    return Planned(ordered, parts, strings, features, {name: meta[name] for name in meta if name != "features"})


def split(tensors: Iterable[Stored]) -> tuple[dict[str, Part], dict[str, tuple[int, ...]]]:
    """Return the parts of all tensors by name, and the shapes of those of strings."""
    parts: dict[str, Part] = {}
    strings: dict[str, tuple[int, ...]] = {}
    for stored in tensors:
        if stored.name in parts or stored.name in strings:
            raise Refused(f"tensor {stored.name} is given twice", "Give each a name of its own.")
        shape = _checked_shape(stored)
        if stored.dtype == STRING:
            strings[stored.name] = shape
            offsets, letters = _letters(stored)
            parts[OFFSETS + stored.name] = Part("int64", (len(offsets) // 8,), len(offsets), offsets)
            parts[LETTERS + stored.name] = Part("uint8", (len(letters),), len(letters), letters)
        else:
            parts[stored.name] = Part(stored.dtype, shape, size_of(stored.dtype, shape) or 0, stored.data)
    return parts, strings


def estimate(tensors: Iterable[Stored]) -> int:
    """Return how many bytes tensors will take on the disk. Calls none of the functions that make their data.

    >>> estimate([Stored("x", "float32", (1000,), bytes)])
    4128
    """
    try:
        parts, _ = split(tensors)
    except Refused as refused:
        raise TapeWriteError("(estimated)", *refused.args) from None
    return lay_out(parts).size


def content(path: str, name: str, part: Part) -> memoryview:
    """Return the bytes of a tensor, of the size that its shape demands."""
    data: Any = part.data() if callable(part.data) else part.data
    try:
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError):
        raise TapeWriteError(
            path, f"the data of tensor {name} is {type(data).__name__}, not plain bytes", "Give `data.tobytes()`."
        ) from None
    if len(view) != part.nbytes:
        shape = list(part.shape)
        problem = f"tensor {name} has {len(view)} bytes, and {part.dtype} {shape} has {part.nbytes}"
        raise TapeWriteError(path, problem, "Give all elements, and the shape that they have.")
    if part.dtype == "bool" and bytes(view).translate(None, b"\0\1"):
        raise TapeWriteError(path, f"tensor {name} of bool holds bytes other than 0 and 1", "Save it as uint8.")
    return view


def _entries(entries: Mapping[str, bytes], limits: Limits) -> dict[str, bytes]:
    if len(entries) + 2 > limits.entries:  # the tensors and tape.json are entries too
        raise Refused(f"{len(entries)} entries and two more are more than {limits.entries}", "Save fewer.")
    for name, data in entries.items():
        if not ENTRY_NAME.fullmatch(name) or name in (TAPE, TENSORS):
            raise Refused(f"{shown(name)} is no name for an entry", f"Use lower case, and not {TAPE} or {TENSORS}.")
        field, limit = limits.of_entry(name)
        if len(data) > limit:
            raise Refused(f"{name} has {len(data):,} bytes, more than {limit:,}", f"Raise `Limits({field}=...)`.")
    return {name: bytes(entries[name]) for name in in_order(entries)}


def _checked_shape(stored: Stored) -> tuple[int, ...]:
    name, dtype = stored.name, stored.dtype
    if not TENSOR_NAME.fullmatch(name) or name.startswith(RESERVED):
        raise Refused(f"{shown(name)} is no name for a tensor", "Use letters, digits and `_ . / : @ # + -`.")
    if dtype not in STORABLE:
        raise Refused(f"tensor {name} has dtype {shown(dtype)}, which is not data", "Leave it out.")
    shape = tuple(map(int, stored.shape))
    countable = size_of("int64" if dtype == STRING else dtype, shape) is not None
    if len(shape) > RANK_LIMIT or min(shape, default=0) < 0 or not countable:
        raise Refused(f"tensor {name} has the impossible shape {shown(list(shape))}", "Give the shape of its data.")
    return shape


def _letters(stored: Stored) -> tuple[bytes, bytes]:
    items = list(stored.data() if callable(stored.data) else stored.data)
    if not all(isinstance(item, bytes) for item in items):
        raise Refused(f"tensor {stored.name} is one of strings, and not all are bytes", "Encode them first.")
    if len(items) != (size_of("int8", stored.shape) or 0):
        problem = f"tensor {stored.name} has {len(items)} strings, and its shape is {list(stored.shape)}"
        raise Refused(problem, "Give one for each element, row by row.")
    ends = list(accumulate(map(len, items), initial=0))
    return struct.pack(f"<{len(ends)}q", *ends), b"".join(items)
