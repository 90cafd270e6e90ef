"""A recording without calls of functions: each one is replaced by the ops that it ran.

A `tf.function` is known to the process that traced it. A file that names only ops of TensorFlow needs nobody's
functions, and nothing in it can call itself.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from retrotape import _tf_functions
from retrotape.errors import NotPersistableError
from retrotape.execute import Values, run_function
from retrotape.ir import Eqn
from retrotape.record import CUSTOM, Cell, Kind, Merger, Recording, function_traits, traits
from retrotape.rules import FORWARD

Tensor = Any


def flatten(recording: Recording, freeze: Collection[str] = ()) -> Recording:
    """Return the same recording with every call replaced by what ran inside; of those in `freeze`, by what it gave."""
    flat = Recording()
    flat.guard = recording.guard
    flattener = _Flattener(flat, recording, freeze)
    for index, stamp in enumerate(recording.stamps):
        flattener.add(0, index, stamp)
    flattener.finish(0, recording)
    return flat


class _Flattener(Merger):
    def __init__(self, flat: Recording, recording: Recording, freeze: Collection[str]) -> None:
        super().__init__(flat, [recording])
        self._freeze = freeze
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
        name = eqn.op if call is None else _tf_functions.graph_of(call.function).name
        if name in self._freeze:
            self._keep_outputs(eqn)
            return
        where = str(recording.program().frame_of(eqn))
        if call is None:
            raise NotPersistableError(index, name, where, "nobody knows what is inside")
        if not function_traits(call.function).deterministic:
            ops = ", ".join(_unrepeatable(call.function))
            raise NotPersistableError(
                index,
                name,
                where,
                f"inside a tf.function, {ops} cannot be run again to the same effect",
                "do that outside, draw with `tf.random.stateless_*`, or `tf.config.run_functions_eagerly(True)`",
            )
        self._splice(eqn, call.function)

    def _keep_outputs(self, eqn: Eqn) -> None:
        """Let what a call gave, and what it left in variables, come from nowhere."""
        recording, flat = self._recordings[0], self._merged
        for var in eqn.outputs:
            leaf = flat.builder.leaf(recording.builder.types[var])
            flat.values[leaf] = self._values(var)
            self._connect(0, var, leaf)
            cell = recording.cell_of.get(var)
            if cell is not None:
                flat.add_version(cell.handle, leaf, len(flat.builder.eqns) - 1)
                flat.gaps.update(() if var in recording.inert else (leaf,))

    def _splice(self, eqn: Eqn, function: Any) -> None:
        recording, inner = self._recordings[0], Recording()
        operands = [self._values(var) for var in eqn.inputs]
        held, place = [var in recording.cell_of for var in eqn.inputs], recording.frames.place(eqn.frame)
        results, given = run_function(inner, function, operands, held, place)
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

    def _entry(self, recording: Recording, var: int, cell: Cell) -> int:
        """Return the version that a variable has on entry; nobody else has one that it could be the same as."""
        flat, known = self._merged, cell.handle._id in self._merged.cells
        version = flat.builder.leaf(recording.builder.types[var])
        flat.add_version(cell.handle, version, len(flat.builder.eqns) - 1)
        flat.gaps.update((version,) if known and var not in recording.inert else ())
        return version

    def _handle_of(self, cell: Cell) -> Tensor:
        return self._originals.get(cell.handle._id, cell.handle)


# Have state, or are about functions, and do the same again.
_HARMLESS = frozenset(
    ("Assert", "PrintV2", "VarHandleOp", "PartitionedCall", "StatefulPartitionedCall", "While", "If", "Case")
)


def _unrepeatable(function: Any) -> list[str]:
    """Return the ops that a function may not have: those with a state that is not a variable's."""
    found = set()
    for op in _tf_functions.operations_within(function):
        known = traits(op)
        about_variables = op in FORWARD or known.kind is Kind.READ
        if known.kind is not Kind.CALL and not known.replayable and not about_variables and op not in _HARMLESS:
            found.add(op)
    return sorted(found)
