"""The values that a question looks at: kept ones as they are, others computed again from the leaves."""

from __future__ import annotations

from typing import Any

from retrotape import _tf
from retrotape._tf import tf
from retrotape.errors import LostValueError
from retrotape.ir import LEAF, Eqn, slice_to
from retrotape.record import CUSTOM, Recording, current_stack, for_execution, for_rule
from retrotape.rules import FORWARD, new_values

Tensor = Any


class Values:
    """Looks up values by var, for as long as one question lasts."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._kept = recording.values
        self._again: dict[int, Tensor] = {}

    def __call__(self, var: int) -> Tensor:
        """Return the value of `var`."""
        value = self._kept.get(var)
        if value is None:
            value = self._again.get(var)
            if value is None:
                self._recompute(var)
                value = self._again[var]
        return value

    def _recompute(self, var: int) -> None:
        recording = self._recording
        held = self._kept.keys() | self._again.keys()
        # Other tapes must see these ops, or they would lose the path; ours knows the values already.
        with current_stack().without(recording):
            for index in slice_to(recording.builder, [var], held):
                eqn = recording.builder.eqns[index]
                outputs = self._evaluate(eqn)
                for out, value in zip(eqn.outputs, outputs, strict=False):
                    if out not in held:
                        self._again[out] = value
                        recording.alias(value._id, out)
        if var not in self._again:
            raise LostValueError(self._describe(var), "Read the variable inside the block before it is changed.")

    def _evaluate(self, eqn: Eqn) -> list[Tensor]:
        inputs = [self(var) for var in eqn.inputs]
        if eqn.op == CUSTOM:
            return inputs[len(inputs) - len(eqn.outputs) :]
        if eqn.op in FORWARD:
            attrs = {name: for_rule(value) for name, value in eqn.attrs}
            # Tensors of their own, so that each can stand for its var and no other.
            return [tf.identity(value) for value in new_values(eqn.op, attrs, inputs)]
        return _tf.run(eqn.op, inputs, for_execution(eqn.attrs), len(eqn.outputs))

    def _describe(self, var: int) -> str:
        recording = self._recording
        cell = recording.cell_of.get(var)
        if cell is not None:
            number = cell.versions.index(var)
            return f"Value number {number} of {recording.name_of(cell)} was overwritten before the tape saw it"
        if recording.builder.producers[var] == LEAF:
            return f"The value of %{var} is no longer there"
        eqn = recording.builder.eqns[recording.builder.producers[var]]
        return f"The value of %{var}, made by {eqn.op}, was not kept and cannot be computed again"
