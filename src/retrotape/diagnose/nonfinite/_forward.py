"""A forward pass over the program: which values are not finite."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.execute import ForwardPass
from retrotape.ir import LEAF, slice_to
from retrotape.record import Trace
from retrotape.tf.core import tf

INF, NAN = 1, 2  # bits
_SHARED = frozenset(
    (np.float16, np.float32, np.float64, np.complex64, np.complex128, np.bool_)
)  # dtypes that NumPy has


def array(value: Any) -> np.ndarray:
    """Return a tensor as an array, without a copy where its memory can be shared; of IndexedSlices, the values."""
    if isinstance(value, tf.IndexedSlices):
        value = value.values
    return np.asarray(value) if value.dtype.as_numpy_dtype in _SHARED else value.numpy()


def kind_of(value: Any) -> int:
    """Return which of INF and NAN a value contains; 0 if it is finite, not numeric, or not known."""
    if value is None or not (value.dtype.is_floating or value.dtype.is_complex):
        return 0
    numbers = array(value)
    if np.isfinite(numbers).all():
        return 0
    return (NAN if np.isnan(numbers).any() else 0) | (INF if np.isinf(numbers).any() else 0)


class Pass:
    """A forward pass that records which values are not finite.

    Args:
      trace: The trace.
      indices: The equations to inspect, in order, with everything that they depend on.
      wanted: Values that are not dropped.
    """

    def __init__(self, trace: Trace, indices: Sequence[int], wanted: Collection[int] = ()) -> None:
        self.flags: dict[int, int] = {}  # vars that are not finite, with INF and NAN bits
        self._producers = trace.program.producers
        self._read: set[int] = set()  # leaves that were inspected
        self.forward = ForwardPass(trace, indices, wanted)
        self.value = self.forward.value

    def run(self) -> Iterator[int]:
        """Yield each equation after its values have been inspected."""
        for index, eqn, inputs, outputs in self.forward.run():
            for var, value in zip(eqn.inputs, inputs, strict=True):
                if self._producers[var] == LEAF and var not in self._read:
                    self._read.add(var)
                    self._flag(var, value)
            for var, value in zip(eqn.outputs, outputs, strict=True):
                self._flag(var, value)
            del inputs, outputs
            yield index

    def inspect(self, var: int) -> None:
        """Inspect a kept value that no equation of the pass uses."""
        if var not in self._read and self._producers[var] == LEAF:
            self._flag(var, self.value(var))

    def _flag(self, var: int, value: Tensor | None) -> None:
        kind = kind_of(value)
        if kind:
            self.flags[var] = kind


def values_of(trace: Trace, wanted: Collection[int]) -> dict[int, Tensor | None]:
    """Return values, kept or recomputed; None for those that are lost."""
    again = Pass(trace, slice_to(trace.program, wanted, trace.values), wanted)
    for _ in again.run():
        pass
    return {var: again.value(var) for var in wanted}
