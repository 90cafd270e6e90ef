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
    RANK_LIMIT,
    RESERVED,
    STORABLE,
    STRING,
    STRING_DATA,
    STRING_OFFSETS,
    TAPE,
    TENSOR_NAME,
    Data,
    Limits,
    Stored,
    quoted,
    size_of,
)
from retrotape.files.store._tables import OWN


class Part(NamedTuple):
    """Something that is written as bytes: an entry, a tensor, or one of the two parts of a string tensor."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    data: Data


class Planned(NamedTuple):
    """Everything that goes into a tape."""

    entries: dict[str, Part]
    parts: dict[str, Part]
    strings: dict[str, tuple[int, ...]]
    features: list[str]
    meta: dict[str, Any]


class _Refused(Exception):
    """Carries a problem and its remedy to where the path is known."""


def plan(
    path: str, entries: Mapping[str, bytes], tensors: Iterable[Stored], meta: Mapping[str, Any], limits: Limits
) -> Planned:
    """Return what is to be written; raise TapeWriteError if a reader would refuse it."""
    try:
        of_entries = _entries(entries, limits)
        parts, strings = _split(tensors, taken={TAPE, *entries})
        total = sum(part.nbytes for part in parts.values())
        if len(parts) > limits.tensors:
            raise _Refused(f"{len(parts):,} tensors are more than {limits.tensors:,}", "Save fewer.")
        if limits.total_bytes is not None and total > limits.total_bytes:
            raise _Refused(f"the tensors have {total:,} bytes, more than {limits.total_bytes:,}", "Save fewer.")
        own = sorted((set(meta) & OWN) - {"features"})
        if own:
            raise _Refused(f"the fields {', '.join(own)} are reserved", "Give them other names.")
        features = sorted(meta.get("features", ()))
        if not FEATURES.issuperset(features):
            raise _Refused(f"the features {quoted(features)} are unknown", "Add them to `store._format.FEATURES`.")
    except _Refused as refused:
        raise TapeWriteError(path, *refused.args) from None
    return Planned(of_entries, parts, strings, features, {name: meta[name] for name in meta if name != "features"})


def content(path: str, name: str, part: Part) -> memoryview:
    """Return the bytes of a part; raise TapeWriteError if its shape requires more or fewer."""
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


def _bytes(data: bytes) -> Part:
    return Part("uint8", (len(data),), len(data), data)


def _entries(entries: Mapping[str, bytes], limits: Limits) -> dict[str, Part]:
    if len(entries) + 1 > limits.entries:
        raise _Refused(f"{len(entries)} entries and {TAPE} are more than {limits.entries}", "Save fewer.")
    for name, data in entries.items():
        if not ENTRY_NAME.fullmatch(name) or name == TAPE:
            raise _Refused(f"{quoted(name)} is not a valid name for an entry", f"Use lower case, and not {TAPE}.")
        field, limit = limits.of_entry(name)
        if len(data) > limit:
            raise _Refused(f"{name} has {len(data):,} bytes, more than {limit:,}", f"Raise `Limits({field}=...)`.")
    return {name: _bytes(bytes(data)) for name, data in entries.items()}


def _split(tensors: Iterable[Stored], taken: set[str]) -> tuple[dict[str, Part], dict[str, tuple[int, ...]]]:
    """Return the parts of all tensors by name, and the shapes of those of strings."""
    parts: dict[str, Part] = {}
    strings: dict[str, tuple[int, ...]] = {}
    for stored in tensors:
        name, shape = stored.name, _checked_shape(stored)
        if name in parts or name in strings:
            raise _Refused(f"tensor {name} is given twice", "Give each a name of its own.")
        if name in taken:
            raise _Refused(f"tensor {name} has the name of an entry", "Give it another name.")
        if stored.dtype == STRING:
            strings[name] = shape
            offsets, data = _encode(stored)
            parts[STRING_OFFSETS + name] = Part("int64", (len(offsets) // 8,), len(offsets), offsets)
            parts[STRING_DATA + name] = _bytes(data)
        else:
            parts[name] = Part(stored.dtype, shape, size_of(stored.dtype, shape) or 0, stored.data)
    return parts, strings


def _checked_shape(stored: Stored) -> tuple[int, ...]:
    name, dtype = stored.name, stored.dtype
    if not TENSOR_NAME.fullmatch(name) or name.startswith(RESERVED):
        raise _Refused(f"{quoted(name)} is not a valid name for a tensor", "Use letters, digits and `_ . / : @ # + -`.")
    if dtype not in STORABLE:
        raise _Refused(f"tensor {name} has dtype {quoted(dtype)}, which is not data", "Leave it out.")
    shape = tuple(map(int, stored.shape))
    countable = size_of("int64" if dtype == STRING else dtype, shape) is not None
    if len(shape) > RANK_LIMIT or min(shape, default=0) < 0 or not countable:
        raise _Refused(f"tensor {name} has the invalid shape {quoted(list(shape))}", "Give the shape of its data.")
    return shape


def _encode(stored: Stored) -> tuple[bytes, bytes]:
    """Return the offsets and the bytes of a string tensor."""
    items = list(stored.data() if callable(stored.data) else stored.data)
    if not all(isinstance(item, bytes) for item in items):
        raise _Refused(f"tensor {stored.name} is one of strings, and not all are bytes", "Encode them first.")
    if len(items) != (size_of("int8", stored.shape) or 0):
        problem = f"tensor {stored.name} has {len(items)} strings, and its shape is {list(stored.shape)}"
        raise _Refused(problem, "Give one for each element, row by row.")
    ends = list(accumulate(map(len, items), initial=0))
    return struct.pack(f"<{len(ends)}q", *ends), b"".join(items)
