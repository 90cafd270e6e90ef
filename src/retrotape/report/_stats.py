"""A few numbers about a tensor, in double precision."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from retrotape.report._data import Stats
from retrotape.tf.core import tf


def array_of(value: Any) -> np.ndarray:
    """Return a tensor as an array of float64 or complex128; of a sparse gradient, the sum of its rows by index."""
    if isinstance(value, tf.IndexedSlices):
        rows, numbers = np.unique(np.asarray(value.indices), return_inverse=True)
        values = array_of(value.values)
        total = np.zeros((len(rows), *values.shape[1:]), values.dtype)
        np.add.at(total, numbers.reshape(-1), values)
        return total
    numbers = value.numpy()
    return numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)


def stats_of(value: Any) -> Stats | None:
    """Return the numbers of a tensor; None if it has none: text, a handle, or nothing known."""
    if value is None or not (value.dtype.is_floating or value.dtype.is_complex or value.dtype.is_integer):
        return None
    return stats_of_array(array_of(value))


def stats_of_array(numbers: np.ndarray) -> Stats:
    """Return the numbers of an array."""
    finite = np.isfinite(numbers)
    good = np.abs(numbers[finite])
    largest = float(good.max()) if good.size else 0.0
    # Divided first: squares of large or small numbers would overflow or underflow.
    scaled = float(np.sqrt(np.square(good / largest).sum())) if largest else 0.0
    norm = largest * scaled
    return Stats(norm, norm / math.sqrt(max(good.size, 1)), numbers.size, int(numbers.size - finite.sum()))


def together(parts: Iterable[Stats]) -> Stats | None:
    """Return the numbers of several tensors taken as one vector; None for none."""
    parts = list(parts)
    if not parts:
        return None
    norm = math.hypot(*(part.norm for part in parts))
    size, bad = sum(part.size for part in parts), sum(part.nonfinite for part in parts)
    return Stats(norm, norm / math.sqrt(max(size - bad, 1)), size, bad)
