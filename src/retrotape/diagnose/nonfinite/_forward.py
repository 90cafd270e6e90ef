"""One pass over what ran, forward: which values are not finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from retrotape.errors import LostValueError
from retrotape.execute import evaluate
from retrotape.ir import LEAF, Eqn, slice_to
from retrotape.record import CUSTOM, Kind, Recording, is_away, traits
from retrotape.rules import FORWARD
from retrotape.tf.core import tf

Tensor = Any
INF, NAN = 1, 2  # bits
_SHARED = frozenset((np.float16, np.float32, np.float64, np.complex64, np.complex128, np.bool_))  # as NumPy has them
_COMPUTED = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", CUSTOM)


def array(value: Any) -> np.ndarray:
    """Return a tensor as an array, without a copy where its memory can be shared; of sparse rows, the rows."""
    if isinstance(value, tf.IndexedSlices):
        value = value.values
    return np.asarray(value) if value.dtype.as_numpy_dtype in _SHARED else value.numpy()


def kind_of(value: Any) -> int:
    """Return which of INF and NAN a value has in it; 0 where it is finite, or no number, or not known."""
    if value is None or not (value.dtype.is_floating or value.dtype.is_complex):
        return 0
    numbers = array(value)
    if np.isfinite(numbers).all():
        return 0
    return (NAN if np.isnan(numbers).any() else 0) | (INF if np.isinf(numbers).any() else 0)


class Pass:
    """The values of a program, one equation after the other.

    What is kept is looked at. What is not is computed again, in the order in which it ran, and let go after its last
    use: one pass in all, and no more in memory than the program itself had.

    Args:
      recording: What was recorded.
      indices: The equations to look at, in order, with everything that they depend on.
      wanted: Values that are not let go.
    """

    def __init__(self, recording: Recording, indices: Sequence[int], wanted: Collection[int] = ()) -> None:
        self.flags: dict[int, int] = {}  # vars that are not finite, with what they have
        self._recording, self._indices, self._wanted = recording, indices, wanted
        self._seen: set[int] = set()  # leaves that were looked at
        self._held: dict[int, Tensor] = {}

    def run(self) -> Iterator[int]:
        """Yield each equation after its outputs have been looked at."""
        eqns, producers = self._recording.builder.eqns, self._recording.builder.producers
        to_use = Counter(var for index in self._indices for var in eqns[index].inputs)
        to_use.update(self._wanted)
        for index in self._indices:
            eqn = eqns[index]
            inputs = [self.value(var) for var in eqn.inputs]
            for var, value in zip(eqn.inputs, inputs, strict=True):
                if producers[var] == LEAF and var not in self._seen:
                    self._seen.add(var)
                    self._note(var, value)
            for var, value in zip(eqn.outputs, self._outputs(eqn, inputs), strict=True):
                self._note(var, value)
                if to_use[var] and value is not None and var not in self._recording.values:
                    self._held[var] = value
            del inputs
            yield index
            for var in eqn.inputs:
                to_use[var] -= 1
                if not to_use[var]:
                    self._held.pop(var, None)

    def look_at(self, var: int) -> None:
        """Look at a kept value that no equation of the pass has."""
        if var not in self._seen and self._recording.builder.producers[var] == LEAF:
            self._note(var, self.value(var))

    def _note(self, var: int, value: Tensor | None) -> None:
        kind = kind_of(value)
        if kind:
            self.flags[var] = kind

    def value(self, var: int) -> Tensor | None:
        """Return a value that is kept or held, None where there is none."""
        value = self._held.get(var)
        if value is None:
            value = self._recording.values.get(var)
            if value is not None and is_away(value):
                value = self._recording.value(var)
        return value

    def _outputs(self, eqn: Eqn, inputs: list[Tensor | None]) -> list[Tensor | None]:
        kept: list[Tensor | None] = [self.value(var) for var in eqn.outputs]
        if all(value is not None for value in kept) or any(value is None for value in inputs):
            return kept  # what was overwritten before anybody looked cannot be blamed
        known = traits(eqn.op)
        if "Dataset" in eqn.op or "Iterator" in eqn.op:  # no numbers; and the function of a `map` may be gone
            return kept
        if (known.kind is Kind.PLAIN and known.replayable) or eqn.op in FORWARD or eqn.op in _COMPUTED:
            try:
                made = evaluate(self._recording, eqn, inputs)
            except LostValueError:
                return kept
            again = [*made, *[None] * len(kept)]
            return [new if value is None else value for value, new in zip(kept, again, strict=False)]
        return kept


def values_of(recording: Recording, wanted: Collection[int]) -> dict[int, Tensor | None]:
    """Return values, kept or computed again; None for what nobody has any more."""
    again = Pass(recording, slice_to(recording.builder, wanted, recording.values), wanted)
    for _ in again.run():
        pass
    return {var: again.value(var) for var in wanted}
