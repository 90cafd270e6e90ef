"""Messages between two processes: JSON and the bytes of tensors. Nothing in them can be code."""

from __future__ import annotations

import json
import struct
from typing import IO, Any

import numpy as np

from retrotape._tf import tf

_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 2**24


def send(stream: IO[bytes], message: Any) -> None:
    """Write a message: a nest of plain data and tensors."""
    arrays: list[np.ndarray] = []
    header = json.dumps(_packed(message, arrays)).encode()
    stream.write(_LENGTH.pack(len(header)) + header)
    for array in arrays:
        stream.write(_LENGTH.pack(array.nbytes))
        stream.write(array.reshape(-1).view(np.uint8).data)
    stream.flush()


def receive(stream: IO[bytes], largest: int) -> Any:
    """Read a message, of which no tensor has more than `largest` bytes; raise EOFError where the other side is gone."""
    size = _length(stream)
    if size > _LARGEST_HEADER:
        raise ValueError(f"a message begins with {size} bytes of JSON")
    return _unpacked(json.loads(_exactly(stream, size)), stream, largest)


def _packed(message: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(message, tf.IndexedSlices):
        parts = [message.values, message.indices, message.dense_shape]
        return {"rows": [_packed(part, arrays) for part in parts]}
    if isinstance(message, tf.Tensor):
        array = np.asarray(message.numpy(), order="C")
        if array.dtype == object:
            raise TypeError("tensors of strings are not sent from one process to another")
        arrays.append(array)
        return {"tensor": message.dtype.name, "shape": list(array.shape)}
    if isinstance(message, dict):
        return {"dict": {str(key): _packed(value, arrays) for key, value in message.items()}}
    if isinstance(message, (list, tuple)):
        return [_packed(item, arrays) for item in message]
    return message


def _unpacked(written: Any, stream: IO[bytes], largest: int) -> Any:
    if isinstance(written, list):
        return [_unpacked(item, stream, largest) for item in written]
    if not isinstance(written, dict):
        return written
    if "dict" in written:
        return {key: _unpacked(value, stream, largest) for key, value in written["dict"].items()}
    if "rows" in written:
        return tf.IndexedSlices(*[_unpacked(part, stream, largest) for part in written["rows"]])
    dtype = tf.as_dtype(written["tensor"])
    size = _length(stream)
    if size > largest or size != dtype.size * int(np.prod(written["shape"], dtype=np.int64)):
        raise ValueError(f"a tensor {dtype.name}{written['shape']} comes with {size} bytes")
    array = np.frombuffer(_exactly(stream, size), dtype.as_numpy_dtype).reshape(written["shape"])
    return tf.constant(array)


def _length(stream: IO[bytes]) -> int:
    return _LENGTH.unpack(_exactly(stream, _LENGTH.size))[0]


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if found is None or len(found) < size:
        raise EOFError
    return found
