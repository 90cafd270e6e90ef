"""A key of `Gradients` that is a name on a tape, where there is no variable or tensor to be the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape.tf.core import tf


class NamedSource(str):
    """The name of a source, with its shape and dtype. Two of the same name are the same key.

    >>> key = NamedSource("dense/kernel", [2, 3], "float32")
    >>> key, key.shape
    ('dense/kernel', TensorShape([2, 3]))
    """

    shape: Any
    dtype: Any

    def __new__(cls, name: str, shape: Sequence[int], dtype: Any) -> NamedSource:
        """Return the key."""
        key = super().__new__(cls, name)
        key.shape, key.dtype = tf.TensorShape(shape), tf.as_dtype(dtype)
        return key

    @property
    def name(self) -> str:
        """The name itself, as variables have one."""
        return str(self)

    def __reduce__(self) -> Any:
        return NamedSource, (str(self), self.shape.as_list(), self.dtype.name)
