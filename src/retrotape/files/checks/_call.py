"""One call of an op, for the checks before it runs: types, attributes, and values where a check needs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from retrotape._types import Tensor
from retrotape.ir import TensorType

Dims = tuple[int | None, ...] | None


class Call(NamedTuple):
    """A call of an op.

    Attributes:
      op: Its name.
      attrs: Its attributes, including defaults.
      kinds: The type of each input; shapes are known.
      fetch: Returns the value of an input, given its position.
    """

    op: str
    attrs: Mapping[str, Any]
    kinds: tuple[TensorType, ...]
    fetch: Callable[[int], Tensor]

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input; positions count from the end where they are negative."""
        return self.kinds[position].shape  # type: ignore[return-value]

    def rank(self, position: int) -> int:
        """Return the rank of an input."""
        return len(self.shape(position))

    def size(self, position: int) -> int:
        """Return how many elements an input has."""
        return math.prod(self.shape(position))

    def value(self, position: int) -> np.ndarray:
        """Return the value of an input."""
        found = self.fetch(position % len(self.kinds)).numpy()
        return np.array(found, object) if isinstance(found, bytes) else np.asarray(found)

    def numbers(self, position: int) -> list[int]:
        """Return the value of an input of whole numbers, flat."""
        return np.asarray(self.value(position)).reshape(-1).tolist()

    def highest(self, position: int) -> int:
        """Return the largest number of an input, -1 where it has none."""
        return int(np.max(self.value(position), initial=-1))

    def elements(self) -> int:
        """Return how many elements all inputs have together."""
        return sum(map(self.size, range(len(self.kinds))))
