"""A value in a file: mapped when it is first looked at, and then it stays."""

from __future__ import annotations

from typing import Any

import numpy as np

from retrotape import store
from retrotape._tf import tf

Tensor = Any
_SMALL = 2**16  # bytes up to which a copy costs less than a mapping
_BY_BITS = {"bfloat16": np.uint16, "float8_e5m2": np.uint8, "float8_e4m3fn": np.uint8}  # which dlpack does not know
_SHARED = frozenset(("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"))


class Mapped:
    """A tensor of a file."""

    __slots__ = ("_container", "_info", "_name", "identity", "nbytes")
    stays = True  # mapped memory costs nothing, and one tensor for all looks keeps paths of other tapes together

    def __init__(self, container: store.Container, name: str, info: store.TensorInfo) -> None:
        self._container, self._name, self._info = container, name, info
        self.identity, self.nbytes = None, info.nbytes

    def fetch(self) -> Tensor:
        """Return the value."""
        dtype, shape = self._info.dtype, self._info.shape
        if dtype == "string":
            strings = self._container.strings(self._name)
            return tf.reshape(tf.constant(strings, tf.string), shape)
        raw = self._container.tensor(self._name)
        if dtype in _SHARED and raw.nbytes > _SMALL:
            array = raw.view(np.dtype(dtype)).reshape(shape)
            return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
        if dtype in _BY_BITS:
            return tf.bitcast(tf.constant(raw.view(_BY_BITS[dtype]).reshape(shape)), dtype)
        return tf.constant(raw.view(tf.as_dtype(dtype).as_numpy_dtype).reshape(shape))
