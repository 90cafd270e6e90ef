"""Sums of gradients by name, in double precision. The order of additions is given, so the bits of the sum are too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """The sums of tapes that have the same names and shapes, or of all tapes.

    Attributes:
      count: How many tapes they are of.
    """

    def __init__(self) -> None:
        self.count = 0
        self._tapes: list[int] = []
        self._sums: dict[str, Sum] = {}

    def add(self, number: int, tape: str, summands: list[Summand]) -> None:
        """Add the gradient of one tape, which has a number in its chunk."""
        for key, value, reason in summands:
            name = str(key)
            total = self._sums[name] = self._sums.get(name) or Sum(key.shape.as_list(), key.dtype.name, tape)
            total.add(value)
            total.add_reasons([reason])
        self._tapes.append(number)
        self.count += 1

    def content(self) -> dict[str, Any]:
        """Return everything as a nest for a file."""
        rows = [[name, s.shape, s.dtype, s.first, s.value, s.reasons] for name, s in self._sums.items()]
        return {"tapes": self._tapes, "sums": rows}

    def mismatch(self, content: Mapping[str, Any], tape: str) -> ShapeMismatchError | None:
        """Return why a tape, which is among those of other sums, cannot be added; None if it can."""
        for name, shape, *_ in content["sums"]:
            known = self._sums.get(name)
            if known is not None and known.shape != shape:
                return ShapeMismatchError(
                    f"{name!r} has shape {tuple(known.shape)} on {known.first!r} and {tuple(shape)} on {tape!r}, and "
                    'cannot be summed. Leave one of them out, or keep them apart: `reduce="each"`.'
                )
        return None

    def merge(self, content: Mapping[str, Any]) -> None:
        """Add other sums, which have the same shapes, from a file."""
        for name, shape, dtype, first, value, reasons in content["sums"]:
            total = self._sums[name] = self._sums.get(name) or Sum(shape, dtype, first)
            total.add(np.asarray(value) if isinstance(value, np.generic) else value)
            total.add_reasons(reasons)
        self.count += len(content["tapes"])

    def merge_all(self, contents: Iterable[Mapping[str, Any]], tapes: Sequence[str], stop: bool) -> dict[int, str]:
        """Add the sums of a chunk; return the error of each tape that does not have the shapes of those before.

        Raises:
          ShapeMismatchError: Such an error, if `stop`.
        """
        failed = {}
        for content in contents:
            errors = {number: self.mismatch(content, tapes[number]) for number in content["tapes"]}
            if not any(errors.values()):
                self.merge(content)
            for number, error in errors.items():
                if error is not None and stop:
                    raise error
                if error is not None:
                    failed[number] = f"{type(error).__name__}: {error}"
        return failed

    def pairs(self, divisor: int) -> Iterator[tuple[NamedSource, Gradient]]:
        """Yield each name with its sum, divided by a number."""
        for name, total in self._sums.items():
            grad = total.gradient(divisor)
            yield NamedSource(name, total.shape, total.dtype if grad is None else grad.dtype), grad

    def reasons(self) -> Iterator[tuple[str, str]]:
        """Yield each name with the reasons why it has no gradient on some tapes."""
        for name, total in self._sums.items():
            yield from ((name, reason) for reason in total.reasons)
