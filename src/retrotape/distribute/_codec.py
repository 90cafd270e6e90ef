"""Nests of arrays, numbers and text as bytes, without pickle: the same bytes for the same nest."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from retrotape._types import Json
from retrotape.distribute._named import NamedGradients
from retrotape.grads import Gradients, NamedSource
from retrotape.tf.core import tf
from retrotape.tf.nests import is_variable

_TAKEN = "tensors, arrays, numbers, text, `Gradients`, and lists, tuples and dictionaries of them"


def encode(nest: Any, *, keep_tensors: bool = False) -> bytes:
    """Return a nest as bytes: the length of a JSON header, the header, and the bytes of the arrays.

    Args:
      nest: What to store.
      keep_tensors: Whether tensors and variables come back as tensors, whose dtype, other than that of an array, is not
        converted silently where they are used.

    Raises:
      TypeError: If there is something else in it.

    >>> decode(encode({"loss": 1.5, "grads": [np.arange(3.0), None, "text"]}))
    {'loss': 1.5, 'grads': [array([0., 1., 2.]), None, 'text']}
    """
    arrays: list[bytes] = []
    header = json.dumps(_Packer(arrays, keep_tensors)(nest), separators=(",", ":")).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *arrays])


def decode(data: bytes) -> Any:
    """Return the nest that `encode` was given; tensors come back as arrays unless kept, named tuples as tuples."""
    begin = 8 + int.from_bytes(data[:8], "little")
    return _unpack(json.loads(data[8:begin]), memoryview(data)[begin:])


class _Packer:
    def __init__(self, arrays: list[bytes], keep_tensors: bool) -> None:
        self._arrays, self._at, self._keep_tensors = arrays, 0, keep_tensors

    def __call__(self, value: Any) -> Json:
        if value is None or type(value) in (bool, int, float, str):
            return ["v", value]
        if isinstance(value, (list, tuple)):
            return ["l" if isinstance(value, list) else "t", [self(item) for item in value]]
        if isinstance(value, dict):
            return ["d", [[self(key), self(item)] for key, item in value.items()]]
        if isinstance(value, Gradients):
            return ["g", [self._source(value, key) for key in value.keys()]]
        if isinstance(value, tf.IndexedSlices):
            return ["s", self(value.values), self(value.indices), self(list(map(int, value.dense_shape)))]
        if isinstance(value, (bytes, complex)) and not isinstance(value, np.generic):
            return ["b", value.hex()] if isinstance(value, bytes) else ["c", value.real, value.imag]
        packed = self._array(value)
        return ["x", packed] if self._keep_tensors and _is_tensor(value) else packed

    def _source(self, grads: Gradients, key: Any) -> Json:
        if not isinstance(key, NamedSource):
            raise TypeError("`Gradients` with names as keys are expected here.")
        missing = grads.get(key) is None
        return [str(key), key.shape.as_list(), key.dtype.name, self(grads.get(key)), grads.why(key) if missing else ""]

    def _array(self, value: Any) -> Json:
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(
                "Got a masked array, whose mask would be lost; give the values, `array.filled(0.0)`, and the mask, "
                "`np.ma.getmaskarray(array)`."
            )
        array = as_array(value)
        if array is None or array.dtype.hasobject or array.dtype.kind in "SUMm" or array.dtype.type is np.void:
            what = type(value).__name__ if array is None else f"an array of dtype {array.dtype}"
            raise TypeError(f"Got {what}; expected {_TAKEN}.")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)  # a name of a dtype has no byte order
        data = np.ascontiguousarray(array).tobytes()
        self._arrays.append(data)
        self._at += len(data)
        return ["a", array.dtype.name, list(array.shape), self._at - len(data)]


def as_array(value: Any) -> np.ndarray | None:
    """Return a tensor, variable, array or number as an array; None for anything else."""
    if _is_tensor(value):
        value = value.numpy()
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic, bool, int, float)) else None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor) or is_variable(value)


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(tf.as_dtype(name).as_numpy_dtype)  # bfloat16 and its like


def _unpack(packed: Json, data: memoryview) -> Any:
    kind, *rest = packed
    if kind in ("l", "t"):
        items = [_unpack(item, data) for item in rest[0]]
        return items if kind == "l" else tuple(items)
    if kind == "d":
        return {_unpack(key, data): _unpack(item, data) for key, item in rest[0]}
    if kind == "g":
        return _gradients([[*row[:3], _unpack(row[3], data), row[4]] for row in rest[0]])
    if kind == "s":
        values, indices, shape = (_unpack(item, data) for item in rest)
        return tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant(shape, tf.int64))
    if kind == "x":
        return tf.constant(_unpack(rest[0], data))
    if kind in ("b", "c"):
        return bytes.fromhex(rest[0]) if kind == "b" else complex(*rest)
    return rest[0] if kind == "v" else _read_array(data, *rest)


def _read_array(data: memoryview, name: str, shape: list[int], at: int) -> Any:
    dtype = _dtype(name)
    size = int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(data, np.uint8, size * dtype.itemsize, at).copy().view(dtype).reshape(shape)
    return array if shape else array[()]


def _gradients(rows: list[list[Any]]) -> NamedGradients:
    keys = [NamedSource(name, shape, dtype) for name, shape, dtype, _, _ in rows]
    grads = [row[3] if row[3] is None or isinstance(row[3], tf.IndexedSlices) else tf.constant(row[3]) for row in rows]
    return NamedGradients(zip(keys, grads, strict=True), [(key, row[4]) for key, row in zip(keys, rows, strict=True)])
