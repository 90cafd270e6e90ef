"""The tables of entries and tensors in `tape.json`, checked field by field."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from retrotape.files.store._errors import TapeErrors
from retrotape.files.store._format import (
    ENTRY_NAME,
    FEATURES,
    ITEM_BYTES,
    RANK_LIMIT,
    RESERVED,
    SHA256,
    STRING,
    STRING_DATA,
    STRING_OFFSETS,
    TAPE,
    TENSOR_NAME,
    Limits,
    TensorInfo,
    quoted,
    size_of,
)

OWN = frozenset({"format", "check", "features", "entries", "tensors", "strings", "store"})


class Tables(NamedTuple):
    """The fields of `tape.json` that the container understands.

    Attributes:
      features: What a reader has to support.
      entries: Every entry but `tape.json`, as bytes.
      parts: Every tensor that has bytes of its own; a string tensor has two such parts.
      tensors: Every tensor as it was saved.
      meta: All other fields.
    """

    features: tuple[str, ...]
    entries: dict[str, TensorInfo]
    parts: dict[str, TensorInfo]
    tensors: dict[str, TensorInfo]
    meta: dict[str, Any]


def read_tables(errors: TapeErrors, fields: Mapping[str, Any], limits: Limits) -> Tables:
    """Return the tables in `fields`; raise where one is not as it should be."""
    features = _list_of_names(errors, fields.get("features"))
    unknown = sorted(set(features) - FEATURES)
    if unknown:  # before anything else: a feature may change what the other fields mean
        raise errors.version(f"the features {', '.join(unknown)}")
    entries = _entries(errors, _object(errors, fields, "entries"), limits)
    parts = _parts(errors, _object(errors, fields, "tensors"), limits)
    both = parts.keys() & {TAPE, *entries}
    if both:
        raise errors.unsafe(f"the name {min(both)} is that of an entry and of a tensor")
    tensors = _with_strings(errors, parts, _object(errors, fields, "strings"))
    meta = {name: value for name, value in fields.items() if name not in OWN}
    return Tables(features, entries, parts, tensors, meta)


def field(errors: TapeErrors, fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is text."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise errors.corrupt(f"the field {name!r} of {TAPE} should be text and is {quoted(value)}")
    return value


def entry_info(nbytes: int, digest: str) -> TensorInfo:
    """Return the description of an entry: in a file it is a tensor of bytes."""
    return TensorInfo("uint8", (nbytes,), nbytes, digest)


def _shape(value: object) -> tuple[int, ...] | None:
    """Return a shape from JSON; None if it is not one."""
    if not isinstance(value, list) or len(value) > RANK_LIMIT:
        return None
    if not all(type(dim) is int and dim >= 0 for dim in value):
        return None
    return tuple(value)


def _object(errors: TapeErrors, fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise errors.corrupt(f"the field {name!r} of {TAPE} should be an object and is {quoted(value)}")
    return value


def _list_of_names(errors: TapeErrors, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and ENTRY_NAME.fullmatch(name) for name in value):
        raise errors.corrupt(f"the field 'features' of {TAPE} should be a list of names and is {quoted(value)}")
    return tuple(value)


def _check_digest(errors: TapeErrors, name: str, value: object) -> None:
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise errors.corrupt(f"the sha256 of {quoted(name)} is {quoted(value)}, not 64 hexadecimal digits")


def _entries(errors: TapeErrors, table: dict[str, Any], limits: Limits) -> dict[str, TensorInfo]:
    count = len(table) + 1  # tape.json is one too
    if count > limits.entries:
        raise errors.over("the number of entries is too high", count, limits.entries, "entries")
    entries: dict[str, TensorInfo] = {}
    for name, row in table.items():
        if not ENTRY_NAME.fullmatch(name) or name == TAPE:
            raise errors.unsafe(f"{quoted(name)} is not a valid name for an entry")
        if not isinstance(row, list) or len(row) != 2:
            raise errors.corrupt(f"the entry {name} should have a size and a sha256, and has {quoted(row)}")
        size, digest = row
        if type(size) is not int or size < 0:
            raise errors.corrupt(f"the entry {name} has the size {quoted(size)}, not a number of bytes")
        errors.check_size(name, size, limits)
        _check_digest(errors, name, digest)
        entries[name] = entry_info(size, digest)
    return entries


def _parts(errors: TapeErrors, table: dict[str, Any], limits: Limits) -> dict[str, TensorInfo]:
    if len(table) > limits.tensors:
        raise errors.over("the number of tensors is too high", len(table), limits.tensors, "tensors")
    parts: dict[str, TensorInfo] = {}
    total = 0
    for name, row in table.items():
        prefix = STRING_OFFSETS if name.startswith(STRING_OFFSETS) else STRING_DATA
        bare = name.removeprefix(prefix)
        if not TENSOR_NAME.fullmatch(bare) or bare.startswith(RESERVED):
            raise errors.unsafe(f"{quoted(name)} is not a valid name for a tensor")
        if not isinstance(row, list) or len(row) != 3:
            raise errors.corrupt(f"tensor {name} should have a dtype, a shape and a sha256, and has {quoted(row)}")
        dtype, shape = row[0], _shape(row[1])
        if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
            raise errors.corrupt(f"tensor {name} has the dtype {quoted(dtype)}, which cannot be stored")
        nbytes = None if shape is None else size_of(dtype, shape)
        if shape is None or nbytes is None:
            raise errors.unsafe(f"tensor {name} has the invalid shape {quoted(row[1])}")
        _check_digest(errors, name, row[2])
        parts[name] = TensorInfo(dtype, shape, nbytes, row[2])
        total += nbytes
    if limits.total_bytes is not None and total > limits.total_bytes:
        raise errors.over("the tensors are too large", total, limits.total_bytes, "total_bytes")
    return parts


def _with_strings(errors: TapeErrors, parts: dict[str, TensorInfo], strings: dict[str, Any]) -> dict[str, TensorInfo]:
    """Return all tensors, with one of strings in place of its two parts."""
    whole = {name: info for name, info in parts.items() if not name.startswith(RESERVED)}
    if len(parts) != len(whole) + 2 * len(strings):
        raise errors.corrupt(f"{TAPE} lists {len(strings)} string tensors, and the tensors have other parts")
    for name, value in strings.items():
        shape = _shape(value)
        offsets, data = parts.get(STRING_OFFSETS + name), parts.get(STRING_DATA + name)
        countable = shape is not None and size_of("int64", shape) is not None
        if shape is None or not countable or offsets is None or data is None or name in whole:
            raise errors.corrupt(f"the string tensor {quoted(name)} lacks a shape or a part, or is listed twice")
        if (offsets.dtype, offsets.shape) != ("int64", (math.prod(shape) + 1,)) or data.dtype != "uint8":
            raise errors.corrupt(f"the parts of the string tensor {quoted(name)} do not fit its shape {quoted(value)}")
        both = hashlib.sha256(bytes.fromhex(offsets.sha256 + data.sha256)).hexdigest()
        whole[name] = TensorInfo(STRING, shape, offsets.nbytes + data.nbytes, both)
    return dict(sorted(whole.items()))
