"""A recording without calls of functions: each one is replaced by the ops that it ran.

A `tf.function` is known to the process that traced it. A file that names only ops of TensorFlow needs nobody's
functions, and nothing in it can call itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from retrotape.errors import NotPersistableError
from retrotape.execute._functions import CallGradient
from retrotape.execute._inline import held_inputs, operands_of, run_function
from retrotape.execute._values import Values
from retrotape.ir import Eqn
from retrotape.record import CUSTOM, Cell, Kind, Recording, current_stack, function_traits, next_stamp, traits
from retrotape.rules import FORWARD
from retrotape.tf import functions
from retrotape.tf.core import tf
from retrotape.transform._join import Merger

Tensor = Any


def flatten(recording: Recording, freeze: Collection[str] = ()) -> Recording:
    """Return the same recording with every call replaced by what ran inside; of those in `freeze`, by what it gave."""
    flat = Recording()
    flat.guard = recording.guard
    flattener = _Flattener(flat, recording, freeze)
    stamps: list[int] = []
    for index, stamp in enumerate(recording.stamps):
        flattener.add(0, index, stamp)
        stamps += [stamp] * (len(flat.builder.eqns) - len(stamps))  # what ran inside ran when the call did
    flattener.finish(0, recording)
    _put_in_order(flat, stamps)
    return flat


def _put_in_order(flat: Recording, stamps: list[int]) -> None:
    """Give each equation, each look and each call of a layer moments of their own, in the order in which they were."""
    scopes = list(flat.scopes.values())
    moments = [(stamp, 0, number) for number, stamp in enumerate(stamps)]
    moments += [(look.stamp, 1, number) for number, look in enumerate(flat.looks)]
    moments += [(scope.begin, 2, number) for number, scope in enumerate(scopes)]
    moments += [(scope.end, 3, number) for number, scope in enumerate(scopes)]
    now = {(kind, number): next_stamp() for _, kind, number in sorted(moments)}
    flat.stamps = [now[0, number] for number in range(len(stamps))]
    flat.looks = [look._replace(stamp=now[1, number]) for number, look in enumerate(flat.looks)]
    moved = [scope._replace(begin=now[2, number], end=now[3, number]) for number, scope in enumerate(scopes)]
    flat.scopes = {scope.begin: scope for scope in moved}


class _Flattener(Merger):
    def __init__(self, flat: Recording, recording: Recording, freeze: Collection[str]) -> None:
        super().__init__(flat, [recording])
        self._freeze = freeze
        self._used = {var for eqn in recording.builder.eqns for var in eqn.inputs}
        self._values = Values(recording)
        self._originals: dict[int, Tensor] = {}  # handle of a stand-in → handle of the variable

    def add(self, which: int, index: int, stamp: int) -> None:
        """Take over an equation; of a call, those that it stands for."""
        recording = self._recordings[which]
        eqn = recording.builder.eqns[index]
        if eqn.op == CUSTOM and self._splice_gradient(index, eqn):
            return
        if traits(eqn.op).kind is not Kind.CALL or eqn.op == CUSTOM:
            super().add(which, index, stamp)
            return
        call = recording.calls.get(index)
        name = eqn.op if call is None else functions.graph_of(call.function).name
        if name in self._freeze:
            self._keep_outputs(eqn)
            return
        where = str(recording.frames.frame(eqn.frame))
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
        """Put what ran inside a call in its place."""
        recording = self._recordings[0]
        plain = [var for var in eqn.outputs if var not in recording.cell_of]
        sides = plain[len(functions.output_types(function)) :]
        body = function if self._used.isdisjoint(sides) else _WithSides(eqn.op, function)
        held = held_inputs(recording, function, eqn.inputs)
        which, made, given = self._run_inside(eqn, body, eqn.inputs, held)
        for var, new in zip(plain, made, strict=False):
            if new is not None:
                self._connect(0, var, new)
        versions = [var for var in eqn.outputs if var in recording.cell_of]
        cells = [
            self._recordings[which].cells.get(given[position]._id) for position in function_traits(function).writes
        ]
        for var, cell in zip(versions, [cell for cell in cells if cell is not None], strict=True):
            self._connect(0, var, self._maps[which][cell.current])

    def _splice_gradient(self, index: int, eqn: Eqn) -> bool:
        """Put the ops of a function's gradient, which nobody has heard, in the place of what it gave; say if it is one.

        A gradient of a call that was asked for in the block is on the recording by its values alone.
        """
        back = self._recordings[0].backwards[index].function
        if not isinstance(back, CallGradient):
            return False
        gradient, recording = back.gradient(), self._recordings[0]
        count = len(eqn.inputs) - len(eqn.outputs)  # the rest is what it gave
        known = dict(zip([t._id for t in back.captured], eqn.inputs[count - len(back.captured) : count], strict=True))
        inputs = [*eqn.inputs[: count - len(back.captured)], *(known.get(t._id) for t in gradient.constants)]
        held = held_inputs(recording, gradient, inputs)
        _, made, _ = self._run_inside(eqn, gradient, inputs, held, gradient.constants)
        by_position = dict(zip(gradient.input_positions, made, strict=True))
        for var, position, value in zip(eqn.outputs, back.positions, eqn.inputs[count:], strict=True):
            found = by_position.get(position)
            self._connect(0, var, self._var(0, value) if found is None else found)
        return True

    def _run_inside(
        self,
        eqn: Eqn,
        function: Any,
        inputs: Sequence[int | None],
        held: Sequence[bool],
        constants: Sequence[Tensor] = (),
    ) -> tuple[int, list[int | None], list[Tensor]]:
        """Run a function op by op; return the number of the recording, the vars of its results, what it was given.

        An input that is None is one of the constants, which are the last inputs.
        """
        recording, inner = self._recordings[0], Recording()
        recorded = iter(operands_of(recording, function, [var for var in inputs if var is not None], self._values))
        rest = [None] * (len(inputs) - len(constants))
        operands = _distinct(
            [
                constant if var is None else next(recorded)
                for var, constant in zip(inputs, [*rest, *constants], strict=True)
            ]
        )
        place = recording.frames.place(eqn.frame)
        results, given = run_function(inner, function, operands, held, place)
        known: dict[int, int] = {}
        for var, operand, handle in zip(inputs, operands, given, strict=True):
            if var is None:
                continue
            cell = inner.cells.get(handle._id)
            found = inner.find(operand) if cell is None else cell.versions[0]
            if cell is not None and var in recording.cell_of:
                self._originals[handle._id] = recording.cell_of[var].handle
                self._merged.stand_ins[handle._id] = recording.cell_of[var].handle._id
            if found is not None:
                known[found] = self._var(0, var)
                if var in recording.uninitialized:
                    self._merged.values.setdefault(known[found], operand)
        which = self._take_in(inner, known)
        for index, stamp in enumerate(inner.stamps):
            super().add(which, index, stamp)
        self.finish(which, inner)
        by_operand = {id(operand): var for operand, var in zip(operands, inputs, strict=True) if var is not None}
        # A handle among the results is one that the derivative of a call wants, and leads nowhere.
        made = [None if t.dtype == tf.resource else self._result(which, t, by_operand) for t in results]
        return which, made, given

    def _result(self, which: int, tensor: Tensor, operands: Mapping[int, int]) -> int:
        """Return the var of what a body returns: made there, or handed back as it was handed in."""
        var = self._recordings[which].find(tensor)
        if var is not None:
            return self._maps[which][var]
        given = operands.get(id(tensor))
        return self._merged.operand(tensor) if given is None else self._var(0, given)

    def _entry(self, recording: Recording, var: int, cell: Cell) -> int:
        """Return the version that a variable has on entry; nobody else has one that it could be the same as."""
        flat, known = self._merged, cell.handle._id in self._merged.cells
        version = flat.builder.leaf(recording.builder.types[var])
        flat.add_version(cell.handle, version, len(flat.builder.eqns) - 1)
        flat.gaps.update((version,) if known and var not in recording.inert else ())
        return version

    def _handle_of(self, cell: Cell) -> Tensor:
        return self._originals.get(cell.handle._id, cell.handle)


def _distinct(operands: list[Tensor]) -> list[Tensor]:
    """Return tensors of which none is another: a variable's value and what was read from it are one tensor."""
    seen: set[int] = set()
    found = []
    for operand in operands:
        if id(operand) in seen:
            with current_stack().unheard():
                operand = tf.identity(operand)
        seen.add(id(operand))
        found.append(operand)
    return found


class _WithSides:
    """A function as it was called for the sake of its derivative: what is on the way is among its results.

    A derivative that somebody takes inside the block starts from these.
    """

    def __init__(self, name: str, function: Any) -> None:
        self._inference_function = SimpleNamespace(name=name.encode())
        self._func_graph = functions.graph_of(function)


# Have state, or are about functions, and do the same again.
_HARMLESS = frozenset(
    ("Assert", "PrintV2", "VarHandleOp", "PartitionedCall", "StatefulPartitionedCall", "While", "If", "Case")
)


def _unrepeatable(function: Any) -> list[str]:
    """Return the ops that a function may not have: those with a state that is not a variable's."""
    found = set()
    for op in functions.operations_within(function):
        known = traits(op)
        about_variables = op in FORWARD or known.kind is Kind.READ
        if known.kind is not Kind.CALL and not known.replayable and not about_variables and op not in _HARMLESS:
            found.add(op)
    return sorted(found)
