"""Values that are not in memory: written to a file while recording, or still in one that was loaded."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import IO, Any, Protocol
from weakref import finalize

import numpy as np

from retrotape.tf.core import tf

Tensor = Any
_WITHOUT_BYTES = (tf.string, tf.resource, tf.variant)


class Away(Protocol):
    """A value that has to be fetched."""

    identity: int | None  # of the tensor that it was, by which other recordings may know it
    nbytes: int
    stays: bool  # in memory, once it was fetched

    def fetch(self) -> Tensor:
        """Return the value, as a new tensor."""


class _Spilled:
    __slots__ = ("_dtype", "_offset", "_shape", "_spill", "identity", "nbytes")
    stays = False

    def __init__(self, spill: Spill, offset: int, tensor: Tensor, array: np.ndarray) -> None:
        self._spill, self._offset = spill, offset
        self._dtype, self._shape = array.dtype, array.shape
        self.identity, self.nbytes = tensor._id, array.nbytes

    def fetch(self) -> Tensor:
        array = np.empty(self._shape, self._dtype)
        self._spill.read(self._offset, array)
        return tf.constant(array)


class Spill:
    """A file without name, gone when nobody needs it any more, to which values are moved.

    Args:
      directory: Where it lies; the system's directory for temporary files if None.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._end = 0
        self._trouble: OSError | None = None

    def put(self, tensor: Tensor) -> Away | None:
        """Move a value to the file; None where it has to stay in memory."""
        if tensor.dtype in _WITHOUT_BYTES:
            return None
        array = np.asarray(tensor.numpy(), order="C")
        data, written = array.reshape(-1).view(np.uint8).data, 0
        try:
            file = self._open()
            while written < len(data):
                written += os.pwrite(file.fileno(), data[written:], self._end + written)
        except OSError as error:
            self._trouble = error
            return None
        spilled = _Spilled(self, self._end, tensor, array)
        self._end += array.nbytes
        return spilled

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="retrotape-", dir=self._directory, buffering=0)  # noqa: SIM115
            finalize(self, self._file.close)
        return self._file

    def complain(self) -> None:
        """Warn of what could not be moved; not where it happens, for a warning may be an error and events be lost."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            warnings.warn(
                f"A value of this tape stays in memory, for it cannot be moved to a file: {trouble}", stacklevel=2
            )

    def read(self, offset: int, array: np.ndarray) -> None:
        """Fill `array` with what was written at `offset`."""
        assert self._file is not None
        data, found = array.reshape(-1).view(np.uint8).data, 0
        while found < len(data):  # at a place of its own: several threads may ask at once
            count = os.preadv(self._file.fileno(), [data[found:]], offset + found)
            if not count:
                raise OSError(f"The file that holds this tape's values ends {len(data) - found} bytes too early.")
            found += count


def is_away(value: Any) -> bool:
    """Say whether a value has to be fetched."""
    return not isinstance(value, tf.Tensor)
