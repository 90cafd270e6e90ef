"""Sums of gradients by name, in double precision. The order of additions is given, so the bits of the sum are too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from retrotape._types import Gradient
from retrotape.distribute._codec import as_array
from retrotape.errors import ShapeMismatchError
from retrotape.grads import Gradients, NamedSource
from retrotape.tf.core import tf

_REASONS = 3  # different reasons why a gradient is missing that are kept

Rows = tuple[np.ndarray, np.ndarray]  # a sparse sum: indices in ascending order, each once, and their rows


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


class Sum:
    """The sum for one name: None while no tape had a path, rows while all gradients were sparse, else an array.

    Attributes:
      first: The tape that the shape was first seen on.
    """

    def __init__(self, shape: list[int], dtype: str, first: str) -> None:
        self.shape, self.dtype, self.first = shape, dtype, first
        self.value: np.ndarray | Rows | None = None
        self.reasons: list[str] = []

    def add(self, value: np.ndarray | Rows | None) -> None:
        """Add a gradient; None is none, and adds nothing."""
        if value is None or self.value is None:
            self.value = value if self.value is None else self.value
        elif isinstance(value, tuple) and isinstance(self.value, tuple):
            self.value = _add_rows(self.value, value)
        else:
            self.value = np.asarray(self._dense(self.value) + self._dense(value))  # a sum of scalars is no array

    def add_reasons(self, reasons: list[str]) -> None:
        """Remember why there was no path."""
        new = [reason for reason in dict.fromkeys(reasons) if reason and reason not in self.reasons]
        self.reasons = [*self.reasons, *new][:_REASONS]

    def _dense(self, value: np.ndarray | Rows) -> np.ndarray:
        if isinstance(value, np.ndarray):
            return value
        whole = np.zeros(self.shape, value[1].dtype)
        whole[value[0]] = value[1]
        return whole

    def gradient(self, divisor: int) -> Gradient:
        """Return the sum, divided by a number, as a tensor."""
        if self.value is None:
            return None
        if isinstance(self.value, tuple):
            indices, rows = self.value
            return tf.IndexedSlices(
                tf.constant(rows / divisor), tf.constant(indices), tf.constant(self.shape, tf.int64)
            )
        return tf.constant(self.value / divisor)


def _add_rows(left: Rows, right: Rows) -> Rows:
    indices = np.union1d(left[0], right[0])
    rows = np.zeros((len(indices), *left[1].shape[1:]), np.result_type(left[1], right[1]))
    rows[np.searchsorted(indices, left[0])] = left[1]
    rows[np.searchsorted(indices, right[0])] += right[1]  # each index is there once
    return indices, rows


def _wide_gradient(grad: Gradient, name: str) -> np.ndarray | Rows | None:
    if grad is None:
        return None
    if isinstance(grad, tf.IndexedSlices):
        given, places = np.unique(grad.indices.numpy().astype(np.int64), return_inverse=True)
        values = _wide(grad.values.numpy())
        rows = np.zeros((len(given), *values.shape[1:]), values.dtype)
        np.add.at(rows, places.reshape(-1), values)
        return given, rows
    array = as_array(grad)
    if array is None:
        raise TypeError(f"The gradient with respect to {name} is a {type(grad).__name__}, which cannot be summed.")
    return _wide(array)


class Summand(NamedTuple):
    """The gradient of one tape with respect to one source, in double precision; the reason where there is none."""

    key: NamedSource
    value: np.ndarray | Rows | None
    reason: str


def summands(grads: Gradients) -> list[Summand]:
    """Return gradients that are keyed by name as what is summed."""
    found = [(key, _wide_gradient(grads.get(key), str(key))) for key in grads.keys()]
    return [Summand(key, value, grads.why(key) if value is None else "") for key, value in found]


class Sums:
    """The sums of the tapes of a chunk, or of all chunks."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[str, Sum] = {}

    def add(self, tape: str, summands: list[Summand]) -> None:
        """Add the gradient of one tape.

        Raises:
          ShapeMismatchError: If a name has another shape on another tape.
        """
        for key, value, reason in summands:
            total = self._sums[str(key)] = self._sum(str(key), key.shape.as_list(), key.dtype.name, tape)
            total.add(value)
            total.add_reasons([reason])
        self.count += 1

    def _sum(self, name: str, shape: list[int], dtype: str, tape: str) -> Sum:
        known = self._sums.get(name) or Sum(shape, dtype, tape)
        if known.shape != shape:
            raise ShapeMismatchError(
                f"{name!r} has shape {tuple(known.shape)} on {known.first!r} and {tuple(shape)} on {tape!r}, and "
                'cannot be summed. Leave one of them out, or keep them apart: `reduce="each"`.'
            )
        return known

    def content(self) -> dict[str, Any]:
        """Return everything as a nest for a file."""
        rows = [[name, s.shape, s.dtype, s.first, s.value, s.reasons] for name, s in self._sums.items()]
        return {"count": self.count, "sums": rows}

    def merge(self, content: Mapping[str, Any]) -> None:
        """Add the sums of a chunk, from its file."""
        for name, shape, dtype, first, value, reasons in content["sums"]:
            total = self._sums[name] = self._sum(name, shape, dtype, first)
            total.add(np.asarray(value) if isinstance(value, np.generic) else value)
            total.add_reasons(reasons)
        self.count += content["count"]

    def pairs(self, divisor: int) -> Iterator[tuple[NamedSource, Gradient]]:
        """Yield each name with its sum, divided by a number."""
        for name, total in self._sums.items():
            grad = total.gradient(divisor)
            yield NamedSource(name, total.shape, total.dtype if grad is None else grad.dtype), grad

    def reasons(self) -> Iterator[tuple[str, str]]:
        """Yield each name with the reasons why it has no gradient on some tapes."""
        for name, total in self._sums.items():
            yield from ((name, reason) for reason in total.reasons)
