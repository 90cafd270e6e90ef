"""Messages between two processes: JSON and the bytes of tensors. Nothing in them can be code."""

from __future__ import annotations

import json
import struct
from enum import Enum
from typing import IO, Any

import numpy as np

from retrotape._tf import tf

_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 2**24


class UnsendableError(TypeError):
    """Something is in a message that no message can have."""


def send(stream: IO[bytes], message: Any) -> None:
    """Write a message: a nest of plain data, tensors and arrays.

    Raises:
      UnsendableError: If something else is in it; nothing has been written then.
    """
    arrays: list[np.ndarray] = []
    header = json.dumps(_packed(message, arrays)).encode()
    if len(header) > _LARGEST_HEADER:
        raise UnsendableError(f"Got {len(header):,} bytes of text; a message has at most {_LARGEST_HEADER:,}.")
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
    if isinstance(message, (tf.Tensor, np.ndarray)):
        return _packed_tensor(tf.convert_to_tensor(message), arrays)
    if isinstance(message, dict):
        return {"dict": [[_packed(item, arrays) for item in pair] for pair in message.items()]}
    if isinstance(message, tuple):
        return {"tuple": [_packed(item, arrays) for item in message]}
    if isinstance(message, list):
        return [_packed(item, arrays) for item in message]
    if isinstance(message, Enum):
        return message.value
    if isinstance(message, np.generic):
        return message.item()
    if message is None or isinstance(message, (str, int, float)):
        return message
    raise UnsendableError(
        f"Got {type(message).__name__}, which is not sent from one process to another: give names, numbers or tensors."
    )


def _packed_tensor(tensor: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
    array = np.asarray(tensor.numpy(), order="C")
    if tensor.dtype == tf.string:
        letters = [item.decode("latin-1") for item in np.asarray(array, object).reshape(-1)]  # each byte is a letter
        return {"strings": letters, "shape": list(tensor.shape)}
    arrays.append(array)
    return {"tensor": tensor.dtype.name, "shape": list(array.shape)}


def _unpacked(written: Any, stream: IO[bytes], largest: int) -> Any:
    if isinstance(written, list):
        return [_unpacked(item, stream, largest) for item in written]
    if not isinstance(written, dict):
        return written
    if "dict" in written:
        pairs = [[_unpacked(item, stream, largest) for item in pair] for pair in written["dict"]]
        return dict(pairs)
    if "tuple" in written:
        return tuple(_unpacked(item, stream, largest) for item in written["tuple"])
    if "rows" in written:
        return tf.IndexedSlices(*[_unpacked(part, stream, largest) for part in written["rows"]])
    if "strings" in written:
        letters = [item.encode("latin-1") for item in written["strings"]]
        return tf.reshape(tf.constant(letters, tf.string), written["shape"])
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
