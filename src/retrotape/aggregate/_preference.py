"""How much a loss counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.errors import ShapeMismatchError
from retrotape.tf.core import tf


def freeze_preference(method: Any, name: str = "preference") -> None:
    """Make a field of a frozen dataclass a tuple of floats, so that equal methods are equal.

    Raises:
      ValueError: If it has something else than finite numbers.
    """
    given = getattr(method, name)
    if given is None:
        return
    try:
        numbers = tuple(map(float, given))
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name}= takes finite numbers, one for each loss, got {given!r}: `{name}=[0.5, 1.0]`.")
    object.__setattr__(method, name, numbers)


def preference_of(given: Sequence[float] | None, count: int) -> Tensor:
    """Return the preferences as float64; equal ones that add up to one if None.

    Raises:
      ShapeMismatchError: If there are not as many as losses.
    """
    if given is None:
        return tf.fill([count], tf.constant(1.0 / count, tf.float64))
    if len(given) != count:
        raise ShapeMismatchError(f"Got {len(given)} preferences for {count} losses; give one for each.")
    return tf.constant(given, tf.float64)
