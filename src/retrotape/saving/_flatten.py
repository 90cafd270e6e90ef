"""A recording without calls of functions: each one is replaced by the ops that it ran.

A `tf.function` is known to the process that traced it. A file that names only ops of TensorFlow needs nobody's
functions, and nothing in it can call itself.
"""

from __future__ import annotations

from typing import Any

from retrotape.errors import NotPersistableError
from retrotape.execute import Values, run_function
from retrotape.ir import Eqn
from retrotape.record import CUSTOM, Cell, Kind, Merger, Recording, function_traits, traits

Tensor = Any


def flatten(recording: Recording) -> Recording:
    """Return the same recording with every call replaced by what ran inside."""
    flat = Recording()
    flattener = _Flattener(flat, recording)
    for index, stamp in enumerate(recording.stamps):
        flattener.add(0, index, stamp)
    flattener.finish(0, recording)
    return flat


class _Flattener(Merger):
    def __init__(self, flat: Recording, recording: Recording) -> None:
        super().__init__(flat, [recording])
        self._values = Values(recording)
        self._originals: dict[int, Tensor] = {}  # handle of a stand-in → handle of the variable

    def add(self, which: int, index: int, stamp: int) -> None:
        """Take over an equation; of a call, those that it stands for."""
        recording = self._recordings[which]
        eqn = recording.builder.eqns[index]
        if traits(eqn.op).kind is not Kind.CALL or eqn.op == CUSTOM:
            super().add(which, index, stamp)
            return
        call = recording.calls.get(index)
        where = str(recording.program().frame_of(eqn))
        if call is None:
            raise NotPersistableError(index, eqn.op, where, "nobody knows what is inside")
        if not function_traits(call.function).deterministic:
            raise NotPersistableError(
                index,
                eqn.op,
                where,
                "it draws random numbers, or runs Python code, inside a tf.function",
                "draw with `tf.random.stateless_*`, or record with `tf.config.run_functions_eagerly(True)`",
            )
        self._splice(eqn, call.function)

    def _splice(self, eqn: Eqn, function: Any) -> None:
        recording, inner = self._recordings[0], Recording()
        operands = [self._values(var) for var in eqn.inputs]
        results, given = run_function(inner, function, operands, [var in recording.cell_of for var in eqn.inputs])
        known: dict[int, int] = {}
        for var, operand, handle in zip(eqn.inputs, operands, given, strict=True):
            cell = inner.cells.get(handle._id)
            found = inner.find(operand) if cell is None else cell.versions[0]
            if cell is not None:
                self._originals[handle._id] = recording.cell_of[var].handle
            if found is not None:
                known[found] = self._var(0, var)
        which = self._take_in(inner, known)
        for index, stamp in enumerate(inner.stamps):
            super().add(which, index, stamp)
        self.finish(which, inner)
        made = [self._maps[which][inner.operand(tensor)] for tensor in results]
        for position in function_traits(function).writes:
            cell = inner.cells.get(given[position]._id)
            if cell is not None:
                made.append(self._maps[which][cell.current])
        versions = [var for var in eqn.outputs if var in recording.cell_of]
        count = len(made) - len(versions)
        for var, new in zip([*eqn.outputs[:count], *versions], made, strict=True):
            self._connect(0, var, new)

    def _handle_of(self, cell: Cell) -> Tensor:
        return self._originals.get(cell.handle._id, cell.handle)
