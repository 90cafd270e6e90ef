"""Values that are not in memory: written to a file, not yet loaded from a saved tape, or made anew."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import IO, Any, Protocol
from weakref import finalize

import numpy as np

from retrotape._types import Tensor
from retrotape.tf.core import identity_of, tf

_WITHOUT_BYTES = (tf.string, tf.resource, tf.variant)


class Offloaded(Protocol):
    """A value that is not in memory."""

    identity: int | None  # of the original tensor, by which other traces may know it
    nbytes: int
    stays: bool  # in memory once loaded
    is_lost: bool  # nobody has it

    def load(self) -> Tensor:
        """Return the value as a new tensor."""


class _OnDisk:
    __slots__ = ("_dtype", "_file", "_offset", "_shape", "identity", "nbytes")
    stays, is_lost = False, False

    def __init__(self, file: OffloadFile, offset: int, tensor: Tensor, array: np.ndarray) -> None:
        self._file, self._offset = file, offset
        self._dtype, self._shape = array.dtype, array.shape
        self.identity: int | None = identity_of(tensor)
        self.nbytes = array.nbytes

    def load(self) -> Tensor:
        array = np.empty(self._shape, self._dtype)
        self._file.read(self._offset, array)
        return tf.constant(array)


class Constant:
    """A value that is the same in every run: made again where it is needed.

    Attributes:
      data: Its bytes, to compare it with another one.
      nbytes: Its size.
    """

    __slots__ = ("_array", "data", "nbytes")
    identity: int | None = None
    stays, is_lost = True, False

    def __init__(self, array: np.ndarray, data: bytes) -> None:
        self._array, self.data, self.nbytes = array, data, array.nbytes

    def load(self) -> Tensor:
        """Return the value as a new tensor."""
        return tf.constant(self._array)


class OffloadFile:
    """An anonymous temporary file for offloaded values, deleted when it is no longer referenced.

    Args:
      directory: Its directory; the system's directory for temporary files if None.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._end = 0
        self._error: OSError | None = None

    def put(self, tensor: Tensor) -> Offloaded | None:
        """Move a value to the file; return None if it has to stay in memory."""
        if tensor.dtype in _WITHOUT_BYTES:
            return None
        array = np.asarray(tensor.numpy(), order="C")
        data, written = array.reshape(-1).view(np.uint8).data, 0
        try:
            file = self._open()
            while written < len(data):
                written += os.pwrite(file.fileno(), data[written:], self._end + written)
        except OSError as error:
            self._error = error
            return None
        stored = _OnDisk(self, self._end, tensor, array)
        self._end += array.nbytes
        return stored

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="retrotape-", dir=self._directory, buffering=0)  # noqa: SIM115
            finalize(self, self._file.close)
        return self._file

    def warn(self) -> None:
        """Warn about a value that could not be moved. Not in `put`, where a warning raised as an error loses events."""
        error, self._error = self._error, None
        if error is not None:
            warnings.warn(
                f"A value of this tape stays in memory because it could not be written to a file: {error}", stacklevel=2
            )

    def read(self, offset: int, array: np.ndarray) -> None:
        """Fill `array` with the bytes at `offset`."""
        assert self._file is not None
        data, found = array.reshape(-1).view(np.uint8).data, 0
        while found < len(data):  # positioned reads: several threads may read at once
            count = os.preadv(self._file.fileno(), [data[found:]], offset + found)
            if not count:
                raise OSError(f"The file with this tape's offloaded values is {len(data) - found} bytes too short.")
            found += count


def is_lost(value: Any) -> bool:
    """Return whether a value was left out of the file that it should be in."""
    return is_offloaded(value) and value.is_lost


def is_offloaded(value: Any) -> bool:
    """Return whether a value is not in memory."""
    return not isinstance(value, tf.Tensor)
