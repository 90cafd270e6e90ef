"""A forward pass over a trace: kept values are used, others recomputed, each dropped after its last use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.errors import LostValueError
from retrotape.execute._run import evaluator, run_steps
from retrotape.ir import CUSTOM, Eqn
from retrotape.record import Kind, Trace, is_deterministic, traits


class Passed(NamedTuple):
    """An equation of a forward pass with its values; None for an unknown one."""

    number: int
    eqn: Eqn
    inputs: list[Tensor | None]
    outputs: list[Tensor | None]


class ForwardPass:
    """Yields the values of a program, one equation at a time.

    Peak memory is no more than the program's own. Random ops do not run again: their values are kept or unknown.

    Args:
      trace: The trace.
      indices: The equations, in order, with everything that they depend on.
      wanted: Vars whose values are not dropped.
      lost: Vars to treat as unknown although the trace has a placeholder for them.
    """

    def __init__(
        self, trace: Trace, indices: Sequence[int], wanted: Collection[int] = (), lost: Collection[int] = ()
    ) -> None:
        self._trace, self._indices, self._wanted, self._lost = trace, indices, wanted, lost
        self._evaluate = evaluator(trace)
        self._inputs: list[Tensor | None] = []
        self.held: dict[int, Any] = _Held(trace, lost)  # computed values with remaining uses

    def value(self, var: int) -> Tensor | None:
        """Return a value that is kept or held, None if there is none."""
        return self.held[var]

    def run(self) -> Iterator[Passed]:
        """Yield each equation with its values."""
        trace, held, eqns = self._trace, self.held, self._trace.program.eqns
        uses = Counter(var for index in self._indices for var in eqns[index].inputs)
        uses.update(self._wanted)
        for index, eqn in run_steps(trace.program, held, self._indices, self._outputs):
            passed = Passed(index, eqn, self._inputs, [held[var] for var in eqn.outputs])
            uses.subtract(eqn.inputs)
            # Drop before the yield: values that live longer fragment the heap.
            for var in (*eqn.inputs, *eqn.outputs):
                if not uses[var] or held.get(var) is None or (var in trace.values and var not in self._lost):
                    held.pop(var, None)
            self._inputs = []
            yield passed

    def _outputs(self, eqn: Eqn, inputs: list[Tensor | None]) -> list[Tensor | None]:
        self._inputs = inputs
        kept: list[Tensor | None] = [self.held[var] for var in eqn.outputs]
        if all(value is not None for value in kept) or any(value is None for value in inputs):
            return kept
        if not _can_run_again(eqn.op):
            return kept
        try:
            made = self._evaluate(eqn, inputs)
        except LostValueError:
            return kept
        again = [*made, *[None] * len(kept)]
        return [new if value is None else value for value, new in zip(kept, again, strict=False)]


def _can_run_again(op: str) -> bool:
    if "Dataset" in op or "Iterator" in op:  # not numeric, and the function of a `map` may no longer exist
        return False
    return is_deterministic(op) and (op == CUSTOM or traits(op).kind is not Kind.CALL)


class _Held(dict[int, Any]):
    """Held values, falling back to kept ones; None for a var that has neither."""

    def __init__(self, trace: Trace, lost: Collection[int]) -> None:
        super().__init__()
        self._trace, self._lost = trace, lost

    def __missing__(self, var: int) -> Tensor | None:
        return None if var in self._lost else self._trace.value(var)
