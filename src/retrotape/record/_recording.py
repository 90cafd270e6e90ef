"""What one tape has written down: the program, the values it keeps, and how custom gradients go back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from retrotape.errors import InterruptedTapeError
from retrotape.ir import LEAF, Attr, Eqn, Program, TensorType
from retrotape.record._attrs import canonical
from retrotape.record._away import Spill
from retrotape.record._cells import FOREVER, Backward, Cell, Event, Look, Scope
from retrotape.record._frames import Frames
from retrotape.record._functions import function_traits
from retrotape.record._ledger import Ledger, whole
from retrotape.record._segments import Segments
from retrotape.record._traits import CUSTOM, RESOURCE, TRAINABLE, Kind, makes_copies, traits
from retrotape.tf import core, hooks

Tensor = Any
WATCHED = -1  # in the place of frugal: a stock tape heard the op, and knows its tensors by identity only


class Recording(Ledger):
    """An append-only program with the values that its gradients need.

    `keep` says which values stay: "needed" those that a gradient rule looks at, "all", "leaves" only those that
    cannot be computed again, "segments" these and some on the way, "disk" in memory no more than with "segments"
    and the rest of the needed ones in a file. What is not kept is computed again when a question needs it.
    """

    def __init__(
        self,
        keep: str = "needed",
        dtype_of: Callable[[Tensor], int] = core.eager_dtype,
        directory: str | None = None,
    ) -> None:
        self.keep = keep
        self.drops = keep in ("leaves", "segments", "disk")  # values that a rule looks at
        self._directory = directory
        super().__init__(dtype_of)

    def clear(self) -> None:
        """Forget everything, in place: tapes that are open go on writing here."""
        super().clear()
        self.stamps: list[int] = []  # when each equation ran, the same on every tape that heard it
        self.frames = Frames()
        self.backwards: dict[int, Backward] = {}  # by equation
        self.calls: dict[int, hooks.FunctionCall] = {}  # by equation
        self.ends: set[int] = set()  # vars made by an op without gradient: paths may start here, but not pass
        self.foreign: set[int] = set()  # equations of other replicas than the one that the tape is inside of
        self.inlined: dict[tuple[tuple[int, ...], bool], Any] = {}  # bodies of calls that were run again, by outputs
        self.moments: set[int] = set()  # identities of tensors that `tf.nn.moments` has stopped the gradient of
        self.recomputed: set[int] = set()  # equations inside of a `tf.recompute_grad`, which stock tapes do not see
        self.looks: list[Look] = []  # where Python saw a value
        self.scopes: dict[int, Scope] = {}  # calls of Keras layers, by when they began
        self.silences: list[tuple[int, int]] = []  # when nothing was heard, on the clock of identities
        self.births: dict[int, float] | None = None  # of a tape from a file: constants that Python made, and when
        self.guard: Any = None  # checks what an op of a file is about to do, and has done
        self.token = object()  # what was handed out before is not to be used after
        self.waiting: list[Event] = []
        self._latest_call = -1
        self.segments = self._make_segments()
        self.damaged = False

    def _make_segments(self) -> Segments | None:
        self._spill = Spill(self._directory) if self.keep == "disk" else None
        if self.keep not in ("segments", "disk"):
            return None
        return Segments(self.builder, self.values, self._spill.put if self._spill else None)

    def settle(self) -> None:
        """Write down what is waiting."""
        if self.waiting:
            self._digest_waiting()
            if self._spill is not None:
                self._spill.complain()

    def _digest_waiting(self) -> None:
        try:  # as `whole` does, whose own call may be interrupted
            events, self.waiting = self.waiting, []
            if not self.damaged:
                self.digest(events)
        except BaseException:
            self.damaged = True
            raise

    def demand_whole(self) -> None:
        """Raise if an exception has come while this was being written: some of it may be missing."""
        if self.damaged:
            raise InterruptedTapeError

    def program(self) -> Program:
        """Return everything recorded so far, frozen and checked."""
        return self.builder.build(self.frames.resolve)

    def explained(self) -> AbstractContextManager[None]:
        """Let what goes wrong with ops be said of the file that they came from, if they came from one."""
        return nullcontext() if self.guard is None else self.guard.explained()

    def runs_after(self, other: Recording) -> bool:
        """Say whether everything here ran after everything there."""
        return not self.stamps or not other.stamps or max(other.stamps) < min(self.stamps)

    def restamp(self, clock: Callable[[], int]) -> None:
        """Let everything have run now, in the same order: what was recorded elsewhere knows no common clock."""
        scopes = [moment for scope in self.scopes.values() for moment in (scope.begin, scope.end)]
        moments = sorted([*self.stamps, *(look.stamp for look in self.looks), *scopes])
        now = {stamp: clock() for stamp in moments}
        self.stamps = [now[stamp] for stamp in self.stamps]
        self.looks = [look._replace(stamp=now[look.stamp]) for look in self.looks]
        moved = [scope._replace(begin=now[scope.begin], end=now[scope.end]) for scope in self.scopes.values()]
        self.scopes = {scope.begin: scope for scope in moved}

    def end_scopes(self, stamp: int) -> None:
        """Let no layer that is still being called have what is recorded later."""
        ended = [scope._replace(end=stamp) for scope in self.scopes.values() if scope.end == FOREVER]
        self.scopes.update((scope.begin, scope) for scope in ended)

    def stopped_by_moments(self) -> set[int]:
        """Return the vars that `tf.nn.moments` has stopped the gradient of."""
        return {self._vars[identity] for identity in self.moments if identity in self._vars}

    # ------------------------------------------------------------------ equations

    def _operands(self, inputs: Sequence[Tensor]) -> tuple[tuple[int, ...], list[Cell | None]]:
        """Return the vars of inputs, where a variable's present value stands for its handle."""
        cells = [self.cell(tensor) if self._dtype_of(tensor) == RESOURCE else None for tensor in inputs]
        ins = [
            self.operand(tensor) if cell is None else cell.current for tensor, cell in zip(inputs, cells, strict=True)
        ]
        if self.segments is not None and not any(cells):
            self.segments.took(ins, inputs)
        return tuple(ins), cells

    @whole
    def digest(self, events: Sequence[Event]) -> None:
        """Write down ops, many at a time: this loop is what recording costs."""
        builder, known, values, inert = self.builder, self._vars, self.values, self.inert
        types, producers, eqns = builder.types, builder.producers, builder.eqns
        dtype_of, frame_of, new, keep = self._dtype_of, self.frames.number, tuple.__new__, self.keep
        stamps, segments = self.stamps, self.segments
        for op, inputs, attrs, outputs, place, frugal, stamp in events:
            if type(op) is not str:
                op = op.decode()  # type: ignore[union-attr]
            features = traits(op)
            if features.kind is not Kind.PLAIN:
                self.append_access(op, inputs, canonical(op, attrs), outputs, frame_of(place))
                stamps.append(stamp)
                continue
            ins = []
            for tensor in inputs:
                var = known.get(tensor._id)
                ins.append(self.operand(tensor) if var is None else var)
            var, index = len(types), len(eqns)
            outs = []
            for tensor in outputs:
                dtype = dtype_of(tensor)
                types.append(new(TensorType, (dtype, tensor._shape_tuple())))
                producers.append(index)
                known[tensor._id] = var
                if dtype not in TRAINABLE:
                    inert.add(var)
                outs.append(var)
                var += 1
            if features.final:
                self.ends.update(outs)
            if frugal > 0:
                self.recomputed.add(index)
            stamps.append(stamp)
            eqns.append(new(Eqn, (op, tuple(ins), tuple(outs), canonical(op, attrs), frame_of(place))))
            if not features.replayable or keep == "all":
                values.update(zip(outs, outputs, strict=True))
            if segments is not None and frugal != WATCHED:
                segments.took(ins, inputs)
                if not frugal:
                    segments.keep(ins, inputs, features.inputs)
                    segments.keep(outs, outputs, features.outputs)
                    segments.settle()
            elif frugal == WATCHED or (keep == "needed" and not frugal):
                some, but = features.inputs
                if some:
                    for position, var in enumerate(ins):
                        if position not in but:
                            values[var] = inputs[position]
                some, but = features.outputs
                if some:
                    for position, var in enumerate(outs):
                        if position not in but:
                            values[var] = outputs[position]

    @whole
    def append_access(
        self,
        op: str,
        inputs: tuple[Tensor, ...],
        attrs: tuple[Attr, ...],
        outputs: tuple[Tensor, ...],
        frame: int,
    ) -> None:
        """Write down an op that reads or writes variables."""
        features = traits(op)
        if op == "AssignVariableOp" and self.known_cell(inputs[0]) is None:
            self._append_first(inputs, attrs, frame)
            return
        if op == "ReadVariableOp":
            self._append_read(inputs[0], attrs, outputs, frame)
            return
        if features.kind is Kind.CALL:  # nobody said what it does, so it may have assigned whatever it was given
            self.append_call(op, inputs, outputs, frame, range(len(inputs)))
            return
        ins, cells = self._operands(inputs)
        if op == "AssignVariableOp" and cells[0] is not None:
            ins, inputs, cells = ins[1:], inputs[1:], cells[:1]
        outs = self._define(outputs)
        self.values.update(zip(outs, outputs, strict=True))
        if makes_copies(op):
            self.scattered.update(cell.handle._id for cell in cells if cell is not None)
        if features.kind is not Kind.READ:
            outs += tuple(self._update(cell, features.opaque) for cell in cells if cell is not None)
        self.builder.append(op, ins, outs, attrs, frame)
        for var, tensor in zip(ins, inputs, strict=True):
            if self._dtype_of(tensor) != RESOURCE:
                self.values[var] = tensor

    def _append_first(self, inputs: tuple[Tensor, ...], attrs: tuple[Attr, ...], frame: int) -> None:
        """Write down the assignment that gives a new variable its first value."""
        handle, value = inputs
        var = self.operand(value)
        (version,) = self.builder.define([self.builder.types[var]])
        self.add_version(handle, version, len(self.builder.eqns))
        self.assigned.add(version)
        if version in self.inert or self.builder.types[var].dtype not in TRAINABLE:
            self.inert.add(version)
        self.values[var] = value
        self.builder.append("AssignVariableOp", (var,), (version,), attrs, frame)

    def _append_read(self, handle: Tensor, attrs: tuple[Attr, ...], outputs: tuple[Tensor, ...], frame: int) -> None:
        cell = self.cell(handle, self._type_of(outputs[0]))
        assert cell is not None
        self._check(cell, outputs[0])
        version = cell.current
        self.builder.append("ReadVariableOp", (version,), self._define(outputs), attrs, frame)
        if self.keep != "leaves" or self.builder.producers[version] == LEAF or version in self.opaque:
            self.values.setdefault(version, outputs[0])

    @whole
    def append_call(
        self,
        op: str,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        frame: int,
        writes: Sequence[int],
        call: hooks.FunctionCall | None = None,
        stamp: int | None = None,
    ) -> None:
        """Write down the call of a function, which may have assigned some of its inputs."""
        ins, cells = self._operands(inputs)
        self._latest_call = len(self.builder.eqns)
        if call is not None:
            self.calls[self._latest_call] = call
        outs = self._define(outputs)
        self.values.update(zip(outs, outputs, strict=True))
        written = [cells[position] for position in writes]
        if call is not None and function_traits(call.function).scatters:
            self.scattered.update(cell.handle._id for cell in cells if cell is not None)
        outs += tuple(self._update(cell, opaque=True) for cell in written if cell is not None)
        if call is not None:
            for cell in written:
                self._drop_uninitialized(cell)
        self.builder.append(op, ins, outs, (), frame)
        if stamp is not None:
            self.stamps.append(stamp)

    @whole
    def append_backward(
        self,
        name: str,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        function: Callable,
        frame: int,
        stamp: int,
    ) -> None:
        """Write down that `outputs` go back to `inputs` by `function`, whatever made them.

        The equation takes what was made before as inputs of its own, so that the program stays single assignment
        and still says how to compute the outputs.
        """
        ins, _ = self._operands(inputs)
        made = tuple(self.operand(tensor) for tensor in outputs)
        outs = self._define(outputs)
        self.backwards[len(self.builder.eqns)] = Backward(function, ins, outs)
        self.builder.append(CUSTOM, ins + made, outs, (("name", name.encode()),), frame)
        self.stamps.append(stamp)

    @whole
    def attach_backward(self, outputs: Sequence[Tensor], count: int, function: Callable) -> None:
        """Say how the function that was called last goes back from `outputs` to its first `count` inputs."""
        index = self._latest_call
        outs = tuple(self._vars[tensor._id] for tensor in outputs)
        self.backwards[index] = Backward(function, self.builder.eqns[index].inputs[:count], outs)
