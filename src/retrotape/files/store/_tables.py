"""What `tape.json` says of entries and tensors, checked field by field."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from retrotape.files.store._format import (
    ENTRY_NAME,
    FEATURES,
    ITEM_BYTES,
    LETTERS,
    OFFSETS,
    RANK_LIMIT,
    RESERVED,
    SHA256,
    STRING,
    TAPE,
    TENSOR_NAME,
    TENSORS,
    Limits,
    TensorInfo,
    shown,
    size_of,
)
from retrotape.files.store._where import Where

OWN = frozenset({"format", "check", "features", "sha256", "tensors", "strings", "store"})


class Tables(NamedTuple):
    """The fields of `tape.json` that the container understands.

    Attributes:
      features: What a reader has to know.
      sha256: The digest of every entry but `tape.json` and the tensors.
      parts: Every tensor that has bytes of its own; a tensor of strings has two such parts.
      tensors: Every tensor as it was saved.
      meta: All other fields.
    """

    features: tuple[str, ...]
    sha256: dict[str, str]
    parts: dict[str, TensorInfo]
    tensors: dict[str, TensorInfo]
    meta: dict[str, Any]


def read_tables(where: Where, fields: Mapping[str, Any], limits: Limits) -> Tables:
    """Return the tables in `fields`; raise where one is not as it should be."""
    features = _list_of_names(where, fields.get("features"))
    unknown = sorted(set(features) - FEATURES)
    if unknown:  # before anything else: a feature may change what the other fields mean
        raise where.version(f"the features {', '.join(unknown)}")
    digests = _object(where, fields, "sha256")
    for name, digest in digests.items():
        if not ENTRY_NAME.fullmatch(name) or name in (TAPE, TENSORS):
            raise where.unsafe(f"{shown(name)} is no name for an entry")
        _check_digest(where, name, digest)
    parts = _parts(where, _object(where, fields, "tensors"), limits)
    tensors = _with_strings(where, parts, _object(where, fields, "strings"))
    meta = {name: value for name, value in fields.items() if name not in OWN}
    return Tables(features, digests, parts, tensors, meta)


def field(where: Where, fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is text."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise where.corrupt(f"the field {name!r} of {TAPE} should be text and is {shown(value)}")
    return value


def shape_of(value: object) -> tuple[int, ...] | None:
    """Return a shape as it stands in JSON; None where it is none."""
    if not isinstance(value, list) or len(value) > RANK_LIMIT:
        return None
    if not all(type(dim) is int and dim >= 0 for dim in value):
        return None
    return tuple(value)


def _object(where: Where, fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise where.corrupt(f"the field {name!r} of {TAPE} should be an object and is {shown(value)}")
    return value


def _list_of_names(where: Where, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and ENTRY_NAME.fullmatch(name) for name in value):
        raise where.corrupt(f"the field 'features' of {TAPE} should be a list of names and is {shown(value)}")
    return tuple(value)


def _check_digest(where: Where, name: str, value: object) -> None:
    if not isinstance(value, str) or not SHA256.fullmatch(value):
        raise where.corrupt(f"the sha256 of {shown(name)} is {shown(value)}, not 64 digits")


def _parts(where: Where, table: dict[str, Any], limits: Limits) -> dict[str, TensorInfo]:
    if len(table) > limits.tensors:
        raise where.over("the number of tensors is too high", len(table), limits.tensors, "tensors")
    parts: dict[str, TensorInfo] = {}
    total = 0
    for name, row in table.items():
        bare = name.removeprefix(OFFSETS) if name.startswith(OFFSETS) else name.removeprefix(LETTERS)
        if not TENSOR_NAME.fullmatch(bare) or bare.startswith(RESERVED):
            raise where.unsafe(f"{shown(name)} is no name for a tensor")
        if not isinstance(row, list) or len(row) != 3:
            raise where.corrupt(f"tensor {name} should have a dtype, a shape and a sha256, and has {shown(row)}")
        dtype, shape = row[0], shape_of(row[1])
        if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
            raise where.corrupt(f"tensor {name} has the dtype {shown(dtype)}, which cannot be stored")
        nbytes = None if shape is None else size_of(dtype, shape)
        if shape is None or nbytes is None:
            raise where.unsafe(f"tensor {name} has the impossible shape {shown(row[1])}")
        _check_digest(where, name, row[2])
        parts[name] = TensorInfo(dtype, shape, nbytes, row[2])
        total += nbytes
    if limits.total_bytes is not None and total > limits.total_bytes:
        raise where.over("the tensors are too large", total, limits.total_bytes, "total_bytes")
    return parts


def _with_strings(where: Where, parts: dict[str, TensorInfo], strings: dict[str, Any]) -> dict[str, TensorInfo]:
    """Return all tensors, with one of strings in the place of its two parts."""
    whole = {name: info for name, info in parts.items() if not name.startswith(RESERVED)}
    if len(parts) != len(whole) + 2 * len(strings):
        raise where.corrupt(f"{TAPE} names {len(strings)} tensors of strings, and the tensors have other parts")
    for name, value in strings.items():
        shape = shape_of(value)
        offsets, letters = parts.get(OFFSETS + name), parts.get(LETTERS + name)
        countable = shape is not None and size_of("int64", shape) is not None
        if shape is None or not countable or offsets is None or letters is None or name in whole:
            raise where.corrupt(f"the strings {shown(name)} lack a shape or a part, or are there twice")
        if (offsets.dtype, offsets.shape) != ("int64", (math.prod(shape) + 1,)) or letters.dtype != "uint8":
            raise where.corrupt(f"the parts of the strings {shown(name)} do not fit their shape {shown(value)}")
        both = hashlib.sha256(bytes.fromhex(offsets.sha256 + letters.sha256)).hexdigest()
        whole[name] = TensorInfo(STRING, shape, offsets.nbytes + letters.nbytes, both)
    return dict(sorted(whole.items()))
