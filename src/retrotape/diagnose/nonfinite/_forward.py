"""One pass over what ran, forward: which values are not finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.errors import LostValueError
from retrotape.execute import evaluator, run_steps
from retrotape.ir import CUSTOM, LEAF, Eqn, slice_to
from retrotape.record import Kind, Trace, traits
from retrotape.rules import FORWARD
from retrotape.tf.core import tf

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

    What is kept is inspected. What is not is computed again, in the order in which it ran, and let go after its last
    use: one pass in all, and no more in memory than the program itself had.

    Args:
      trace: What was recorded.
      indices: The equations to inspect, in order, with everything that they depend on.
      wanted: Values that are not let go.
    """

    def __init__(self, trace: Trace, indices: Sequence[int], wanted: Collection[int] = ()) -> None:
        self.flags: dict[int, int] = {}  # vars that are not finite, with what they have
        self._trace, self._indices, self._wanted = trace, indices, wanted
        self._evaluate = evaluator(trace)
        self._read: set[int] = set()  # leaves that were inspected
        self._env = _Env(trace)

    def run(self) -> Iterator[int]:
        """Yield each equation after its outputs have been inspected."""
        trace, env, eqns = self._trace, self._env, self._trace.program.eqns
        to_use = Counter(var for index in self._indices for var in eqns[index].inputs)
        to_use.update(self._wanted)
        for index, eqn in run_steps(trace.program, env, self._indices, self._outputs):
            for var in eqn.outputs:
                self._note(var, env.get(var))
                if not to_use[var] or env.get(var) is None or var in trace.values:
                    env.pop(var, None)
            yield index
            for var in eqn.inputs:
                to_use[var] -= 1
                if not to_use[var]:
                    env.pop(var, None)

    def inspect(self, var: int) -> None:
        """Inspect a kept value that no equation of the pass has."""
        if var not in self._read and self._trace.program.producers[var] == LEAF:
            self._note(var, self.value(var))

    def _note(self, var: int, value: Tensor | None) -> None:
        kind = kind_of(value)
        if kind:
            self.flags[var] = kind

    def value(self, var: int) -> Tensor | None:
        """Return a value that is kept or held, None where there is none."""
        return self._env[var]

    def _outputs(self, eqn: Eqn, inputs: list[Tensor | None]) -> list[Tensor | None]:
        """Return what an equation made: what is kept, or computed again; None for what is not known."""
        producers = self._trace.program.producers
        for var, value in zip(eqn.inputs, inputs, strict=True):
            if producers[var] == LEAF and var not in self._read:
                self._read.add(var)
                self._note(var, value)
        kept: list[Tensor | None] = [self.value(var) for var in eqn.outputs]
        if all(value is not None for value in kept) or any(value is None for value in inputs):
            return kept  # what was overwritten before it was read cannot be blamed
        known = traits(eqn.op)
        if "Dataset" in eqn.op or "Iterator" in eqn.op:  # no numbers; and the function of a `map` may be gone
            return kept
        if (known.kind is Kind.PLAIN and known.replayable) or eqn.op in FORWARD or eqn.op in _COMPUTED:
            try:
                made = self._evaluate(eqn, inputs)
            except LostValueError:
                return kept
            again = [*made, *[None] * len(kept)]
            return [new if value is None else value for value, new in zip(kept, again, strict=False)]
        return kept


class _Env(dict[int, Any]):
    """The values of a pass: what is held, or else what is kept; None for what is neither."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __missing__(self, var: int) -> Tensor | None:
        return self._trace.value(var)


def values_of(trace: Trace, wanted: Collection[int]) -> dict[int, Tensor | None]:
    """Return values, kept or computed again; None for what is gone."""
    again = Pass(trace, slice_to(trace.program, wanted, trace.values), wanted)
    for _ in again.run():
        pass
    return {var: again.value(var) for var in wanted}
