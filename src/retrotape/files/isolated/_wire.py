"""Messages between two processes: JSON and the bytes of tensors. Nothing in them can be code."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from enum import Enum
from typing import IO, Any, NamedTuple

import numpy as np

from retrotape.tf.core import tf

Pack = Callable[[Any], "tuple[str, Any] | None"]  # the name of an object's kind, and plain data that represents it
Unpack = Callable[[str, Any], Any]  # the reverse

_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 2**26  # enough for the result of `tensors` for 400,000 ops
_MOST = 2**22  # lists, dictionaries and items in a header: a few bytes of text become a hundred of Python's objects
MOST_OF_TENSORS = 2**24
_WITHOUT_VALUE = (tf.resource, tf.variant)


class UnsendableError(TypeError):
    """A message has content that cannot be sent."""


class Plain(NamedTuple):
    """A tensor that is sent by value, without a reference."""

    tensor: Any


def send(stream: IO[bytes], message: Any, pack: Pack = lambda _: None) -> None:
    """Write a message: a nest of plain data, tensors, arrays, and objects that `pack` turns into these.

    Raises:
      UnsendableError: If it holds anything else; nothing is written then.
    """
    parts: list[Any] = []
    header = json.dumps(_packed(message, parts, pack)).encode()
    if len(header) > _LARGEST_HEADER:
        raise UnsendableError(f"Got {len(header):,} bytes of text; a message has at most {_LARGEST_HEADER:,}.")
    stream.write(_LENGTH.pack(len(header)) + header)
    for part in parts:
        stream.write(_LENGTH.pack(part.nbytes))
        stream.write(part)
    stream.flush()


def receive(
    stream: IO[bytes],
    largest: int,
    unpack: Unpack | None = None,
    *,
    most: int = _MOST,
    is_over: Callable[[], bool] = lambda: False,
) -> Any:
    """Read a message; raise EOFError if the pipe was closed.

    Args:
      stream: Where from.
      largest: The most bytes that its tensors have.
      unpack: Makes objects of plain data.
      most: The most items that its header has.
      is_over: Whether there is no time left, which counts as the end of the pipe.
    """
    size = _length(stream)
    if size > _LARGEST_HEADER:
        raise ValueError(f"a message begins with {size} bytes of JSON")
    header = _exactly(stream, size)
    items = sum(map(header.count, (b"[", b"{", b",")))
    if items > most:
        raise ValueError(f"a message begins with {items} items")
    return _Reader(stream, largest, unpack, is_over).read(json.loads(header))


def _packed(message: Any, parts: list[Any], pack: Pack) -> Any:
    if message is None or type(message) in (str, int, float, bool):
        return message
    if type(message) is list:
        return [_packed(item, parts, pack) for item in message]
    if type(message) is tuple:
        return {"tuple": [_packed(item, parts, pack) for item in message]}
    if isinstance(message, bytes):
        parts.append(memoryview(message))
        return {"bytes": len(message)}
    if isinstance(message, Plain):
        return _packed_tensor(message.tensor, parts)
    if (found := pack(message)) is not None:
        return {"object": found[0], "fields": _packed(found[1], parts, pack)}
    return _packed_other(message, parts, pack)


def _packed_other(message: Any, parts: list[Any], pack: Pack) -> Any:
    if isinstance(message, tf.IndexedSlices):
        rows = [message.values, message.indices, message.dense_shape]
        return {"rows": [_packed(part, parts, pack) for part in rows]}
    if isinstance(message, (tf.Tensor, np.ndarray)):
        return _packed_tensor(message, parts)
    if isinstance(message, dict):
        return {"dict": [[_packed(item, parts, pack) for item in pair] for pair in message.items()]}
    if isinstance(message, tuple):
        return {"tuple": [_packed(item, parts, pack) for item in message]}
    if isinstance(message, list):
        return [_packed(item, parts, pack) for item in message]
    if isinstance(message, Enum):
        return message.value
    if isinstance(message, np.generic):
        return message.item()
    if isinstance(message, (str, int, float)):  # a subclass
        return message
    raise UnsendableError(
        f"Got {type(message).__name__}, which cannot be sent to another process: give names, numbers or tensors."
    )


def _packed_tensor(given: Any, parts: list[Any]) -> dict[str, Any]:
    tensor = tf.convert_to_tensor(given)
    if tensor.dtype in _WITHOUT_VALUE or not hasattr(tensor, "numpy"):
        what = tensor.dtype.name if hasattr(tensor, "numpy") else "inside a tf.function"
        raise UnsendableError(f"Got a tensor {what}, which has no value that could be sent to another process.")
    array = np.asarray(tensor.numpy(), order="C")
    if tensor.dtype == tf.string:
        letters = [
            item.decode("latin-1") for item in np.asarray(array, object).reshape(-1)
        ]  # each byte becomes one character
        return {"strings": letters, "shape": list(tensor.shape)}
    parts.append(array.reshape(-1).view(np.uint8).data)
    return {"tensor": tensor.dtype.name, "shape": list(array.shape)}


class _Reader:
    def __init__(self, stream: IO[bytes], largest: int, unpack: Unpack | None, is_over: Callable[[], bool]) -> None:
        self._stream, self._left, self._unpack, self._is_over = stream, largest, unpack, is_over

    def read(self, written: Any) -> Any:
        """Return the decoded value; the parts after the header are read in the same order."""
        if isinstance(written, (list, dict)) and self._is_over():
            raise EOFError
        if isinstance(written, list):
            return [self.read(item) for item in written]
        if not isinstance(written, dict):
            return written
        if "dict" in written:
            return dict([self.read(item) for item in pair] for pair in written["dict"])
        if "tuple" in written:
            return tuple(self.read(item) for item in written["tuple"])
        if "rows" in written:
            return tf.IndexedSlices(*[self.read(part) for part in written["rows"]])
        if "bytes" in written:
            return self._part(written["bytes"], "bytes")
        if "object" in written:
            if self._unpack is None:
                raise ValueError("an object where none is expected")
            return self._unpack(written["object"], self.read(written["fields"]))
        if "strings" in written:
            letters = [item.encode("latin-1") for item in written["strings"]]
            return tf.reshape(tf.constant(letters, tf.string), written["shape"])
        return self._tensor(tf.as_dtype(written["tensor"]), written["shape"])

    def _tensor(self, dtype: Any, shape: list[int]) -> Any:
        expected = dtype.size * int(np.prod(shape, dtype=np.int64))
        raw = self._part(expected, f"a tensor {dtype.name}{shape}")
        if dtype == tf.bool and raw.translate(None, b"\0\1"):  # neither True nor False, and so both, in some kernels
            raise ValueError(f"a tensor {dtype.name}{shape} has other bytes than 0 and 1")
        return tf.constant(np.frombuffer(raw, dtype.as_numpy_dtype).reshape(shape))

    def _part(self, expected: int, what: str) -> bytes:
        size = _length(self._stream)
        self._left -= size
        if self._left < 0 or size != expected:
            raise ValueError(f"{what} comes with {size} bytes")
        return _exactly(self._stream, size)


def _length(stream: IO[bytes]) -> int:
    return _LENGTH.unpack(_exactly(stream, _LENGTH.size))[0]


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if found is None or len(found) < size:
        raise EOFError
    return found
