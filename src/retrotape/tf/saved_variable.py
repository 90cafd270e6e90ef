"""A variable of a loaded tape: it has a name and values, but cannot be assigned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrotape.tf.core import next_id, tf


class _Handle:
    __slots__ = ("_id",)

    def __init__(self) -> None:
        self._id = next_id()


class SavedVariable:
    """A variable on a loaded tape, for use as a source and as a key of `Gradients`.

    Attributes:
      name: As it was when the tape was saved; Keras' path for a Keras variable.
      dtype: Its dtype.
      shape: Its shape.
      trainable: Whether it was trainable when the tape was saved.
      frozen: Whether it was a weight of a frozen Keras layer.
    """

    __slots__ = ("__weakref__", "_load", "dtype", "frozen", "handle", "name", "shape", "trainable")

    def __init__(
        self,
        name: str,
        dtype: int,
        shape: tuple[int | None, ...] | None,
        trainable: bool,
        load: Callable[[], Any],
        frozen: bool = False,
    ) -> None:
        self.name, self.trainable, self.frozen = name, trainable, frozen
        self.dtype, self.shape = tf.as_dtype(dtype), tf.TensorShape(shape)
        self.handle = _Handle()
        self._load = load

    @property
    def path(self) -> str:
        """The same as `name`, as Keras calls it."""
        return self.name

    def value(self) -> Any:
        """Return the last value that it had on the tape."""
        return self._load()

    def numpy(self) -> Any:
        """Return the last value that it had on the tape, as an array."""
        return self._load().numpy()

    def __repr__(self) -> str:
        return f"<{self.name} of a loaded tape, {self.dtype.name}{list(self.shape)}>"
