"""A value in a file: read and verified when it is first used, then kept."""

from __future__ import annotations

import numpy as np

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.files import store
from retrotape.tf.core import tf

_publishing = new_lock()
_SMALL = 2**16  # bytes up to which a copy costs less than sharing memory
_SHARED = frozenset(("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"))


class InFile:
    """A tensor of a file. A large one is not copied: TensorFlow's tensor shares the memory that was read."""

    __slots__ = ("_container", "_info", "_loaded", "_name", "identity", "nbytes")
    is_lost = False
    stays = True  # what was verified is used, not read again

    def __init__(self, container: store.Container, name: str, info: store.TensorInfo) -> None:
        self._container, self._name, self._info = container, name, info
        self.identity, self.nbytes = None, info.nbytes
        self._loaded: Tensor | None = None  # one for all traces that have it, which connects what they record

    @property
    def digest(self) -> str:
        """The sha256 of its bytes, as the file has it."""
        return self._info.sha256

    def load(self) -> Tensor:
        """Return the value, always the same tensor."""
        if self._loaded is None:
            found = self._read()
            with _publishing:  # another thread may have read it meanwhile, for another trace
                if self._loaded is None:
                    self._loaded = found
        return self._loaded

    def _read(self) -> Tensor:
        dtype, shape = self._info.dtype, self._info.shape
        if dtype == "string":
            strings = self._container.strings(self._name)
            return tf.reshape(tf.constant(strings, tf.string), shape)
        raw = self._container.tensor(self._name)
        if raw.nbytes > _SMALL and dtype in _SHARED:
            return _shared(raw.view(np.dtype(dtype)).reshape(shape))
        if raw.nbytes > _SMALL and dtype == "bfloat16":  # not supported by dlpack
            return tf.bitcast(_shared(raw.view(np.uint16).reshape(shape)), dtype)
        return tf.constant(raw.view(tf.as_dtype(dtype).as_numpy_dtype).reshape(shape), dtype)


def _shared(array: np.ndarray) -> Tensor:
    """Return a tensor in the memory of an array."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
