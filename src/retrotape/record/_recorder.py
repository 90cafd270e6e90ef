"""The recorder turns ops that have run into equations. Nothing else appends to the program of a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrotape._types import Place, Tensor
from retrotape.ir import (
    BROADCAST,
    CUSTOM,
    FOREVER,
    LEAF,
    Attr,
    BackwardFunction,
    Body,
    Builder,
    Eqn,
    HostRead,
    TensorType,
    VariableHistory,
)
from retrotape.record._attributes import canonical
from retrotape.record._event import WATCHED, Event
from retrotape.record._functions import function_traits
from retrotape.record._histories import whole
from retrotape.record._in_segments import InSegments
from retrotape.record._observer import Observer
from retrotape.record._offload import OffloadFile
from retrotape.record._run import Run
from retrotape.record._segments import Segments
from retrotape.record._trace import Trace
from retrotape.record._traits import RESOURCE, TRAINABLE, Kind, makes_copies, traits
from retrotape.tf import core, hooks
from retrotape.tf.core import identity_of


class Recorder(InSegments):
    """Appends equations, and keeps the values that their gradients need.

    `keep` selects which values stay: "needed", those that a gradient rule reads; "all"; "leaves", those that cannot be
    recomputed; "segments", these and some in between; "disk", as "segments" in memory, with the other needed values in
    a file. Values that are not kept are recomputed when a query needs them.
    """

    observer: Observer | None = None  # set if the ops are not recorded to be differentiated, but to be compiled

    def __init__(
        self,
        keep: str = "needed",
        dtype_of: Callable[[Tensor], int] = core.eager_dtype,
        directory: str | None = None,
    ) -> None:
        self._directory = directory
        super().__init__(keep, dtype_of)

    def clear(self) -> None:
        """Forget everything, in place: open tapes continue to record here."""
        super().clear()
        self.waiting: list[Event] = []
        self._latest_call = -1
        self._offload = OffloadFile(self._directory) if self.keep == "disk" else None
        self.segments = self._make_segments()
        self.damaged = False

    def _make_segments(self) -> Segments | None:
        if self.keep not in ("segments", "disk"):
            return None
        return Segments(self._builder, self.values, self._offload.put if self._offload else None)

    def fork(self) -> Recorder:
        """Return a trace that begins with this one: what is recorded there is not recorded here."""
        self.flush()
        fork = Recorder(self.keep, self._dtype_of, self._directory)
        fork._build(Builder(self.program, self.frames.copy()))
        fork.values, fork.tensors = self.values.copy(), self.tensors.copy()
        fork.variables, fork.owners = self.variables.copy(), self.owners.copy()
        fork.wholes = self.wholes.copy()
        fork.stand_ins, fork.copied_on_read = self.stand_ins.copy(), self.copied_on_read.copy()
        fork._stale, fork.began = self._stale.copy(), self.began
        fork._latest_call, fork.damaged = self._latest_call, self.damaged
        fork.token, fork.guard, fork.inlined = self.token, self.guard, self.inlined
        fork.base, fork.base_size = self, len(self.program.types)
        fork.python_constants = None if self.python_constants is None else self.python_constants.copy()
        if self.segments is not None:
            fork.segments = self.segments.fork(fork._builder, fork.values, fork._offload.put if fork._offload else None)
        return fork

    def flush(self) -> None:
        """Record the events that are waiting."""
        if self.waiting:
            self._record_waiting()
            if self._offload is not None:
                self._offload.warn()

    def _record_waiting(self) -> None:
        try:  # as `whole` does, whose wrapper itself may be interrupted
            events, self.waiting = self.waiting, []
            if not self.damaged:
                self.record(events)
        except BaseException:
            self.damaged = True
            raise

    def end_layer_calls(self, time: int) -> None:
        """End the layer calls that are still open: ops recorded later do not belong to them."""
        calls = self.layer_calls
        ended = [call._replace(end=time) for call in calls.values() if call.end == FOREVER]
        calls.update((call.begin, call) for call in ended)

    # ------------------------------------------------------------------ equations

    def _operands(self, inputs: Sequence[Tensor]) -> tuple[tuple[int, ...], list[VariableHistory | None]]:
        """Return the vars of inputs; the current value of a variable replaces its handle."""
        histories = [self.history_at(tensor) if self._dtype_of(tensor) == RESOURCE else None for tensor in inputs]
        ins = [
            self.var_of(tensor) if history is None else history.current
            for tensor, history in zip(inputs, histories, strict=True)
        ]
        if self.segments is not None and not any(histories):
            self.segments.add_uses(ins, inputs)
        return tuple(ins), histories

    @whole
    def record(self, events: Sequence[Event]) -> None:
        """Record a batch of ops. This loop dominates the cost of recording."""
        if self._follower is not None:
            events = self.follow(events)
            if not events:
                return
        builder, known, values = self._built(), self.tensors.by_identity, self.values
        types, producers, eqns, facts = builder.types, builder.producers, builder.eqns, builder.facts
        dtype_of, frame_of, new, keep = self._dtype_of, self.frames.number, tuple.__new__, self.keep
        discrete, times, segments, shape_of = facts.discrete, facts.times, self.segments, self._shape_of
        for op, inputs, attrs, outputs, place, recompute, time in events:
            if type(op) is not str:
                op = op.decode()  # type: ignore[union-attr]
            features = traits(op)
            if features.kind is not Kind.PLAIN:
                self.append_access(op, inputs, canonical(op, attrs), outputs, frame_of(place))
                times.append(time)
                continue
            ins = []
            for tensor in inputs:
                var = known.get(identity_of(tensor))
                ins.append(self.var_of(tensor) if var is None else var)
            var, index = len(types), len(eqns)
            outs = []
            for tensor in outputs:
                dtype = dtype_of(tensor)
                types.append(new(TensorType, (dtype, shape_of(tensor))))
                producers.append(index)
                known[identity_of(tensor)] = var
                if dtype not in TRAINABLE:
                    discrete.add(var)
                outs.append(var)
                var += 1
            if features.nondifferentiable:
                facts.nondifferentiable.update(outs)
            if recompute > 0:
                facts.recomputed.add(index)
            times.append(time)
            eqns.append(new(Eqn, (op, tuple(ins), tuple(outs), canonical(op, attrs), frame_of(place))))
            if not features.replayable or keep == "all":
                values.update(zip(outs, outputs, strict=True))
            if segments is not None and recompute != WATCHED:
                segments.add_uses(ins, inputs)
                if not recompute:
                    segments.keep(ins, inputs, features.inputs)
                    segments.keep(outs, outputs, features.outputs)
                    segments.end_if_full()
            elif recompute == WATCHED or (keep == "needed" and not recompute):
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
        """Record an op that reads or writes variables."""
        features = traits(op)
        if op == "AssignVariableOp" and self.history(inputs[0]) is None:
            self._append_first(inputs, attrs, frame)
            return
        if op == "ReadVariableOp":
            self._append_read(inputs[0], attrs, outputs, frame)
            return
        if features.kind is Kind.CALL:  # unknown function: it may have assigned any of its inputs
            self.append_call(op, inputs, outputs, frame, range(len(inputs)))
            return
        if features.kind is Kind.SEND:
            self._append_broadcast(op, inputs, attrs, outputs, frame)
            return
        ins, histories = self._operands(inputs)
        if op == "AssignVariableOp" and histories[0] is not None:
            ins, inputs, histories = ins[1:], inputs[1:], histories[:1]
        outs = self._define(outputs)
        self.values.update(zip(outs, outputs, strict=True))
        if makes_copies(op):
            self.copied_on_read.update(history.key for history in histories if history is not None)
        if features.kind is not Kind.READ:
            outs += tuple(self._update(history, features.opaque) for history in histories if history is not None)
        self._built().append(op, ins, outs, attrs, frame)
        for var, tensor in zip(ins, inputs, strict=True):
            if self._dtype_of(tensor) != RESOURCE:
                self.values[var] = tensor

    def _append_first(self, inputs: tuple[Tensor, ...], attrs: tuple[Attr, ...], frame: int) -> None:
        """Record the assignment that gives a new variable its first value."""
        handle, value = inputs
        builder, facts, var = self._built(), self._built().facts, self.var_of(value)
        (version,) = builder.define([builder.types[var]])
        facts.add_version(identity_of(handle), handle, version, len(builder.eqns))
        facts.assigned.add(version)
        if builder.types[var].dtype not in TRAINABLE:
            facts.discrete.add(version)
        self.values[var] = value
        builder.append("AssignVariableOp", (var,), (version,), attrs, frame)

    def _append_read(self, handle: Tensor, attrs: tuple[Attr, ...], outputs: tuple[Tensor, ...], frame: int) -> None:
        history = self.history_at(handle, self._type_of(outputs[0]))
        assert history is not None
        self._check_read(history, outputs[0])
        builder, version = self._built(), history.current
        builder.append("ReadVariableOp", (version,), self._define(outputs), attrs, frame)
        if self.keep != "leaves" or builder.producers[version] == LEAF or version in builder.facts.opaque:
            self.values.setdefault(version, outputs[0])

    def _append_broadcast(
        self, op: str, inputs: tuple[Tensor, ...], attrs: tuple[Attr, ...], outputs: tuple[Tensor, ...], frame: int
    ) -> None:
        """Record that a worker sends a value to all others, or receives one: a variable gets its first value so."""
        sent = op.startswith("CollectiveBcastSend")
        ins, outs = tuple(self.var_of(tensor) for tensor in inputs[:sent]), self._define(outputs)
        # Newer ops take the number of replicas as an input: after the value, if there is one.
        size = dict(attrs).get("group_size") or int(inputs[sent])
        self._built().append(BROADCAST, ins, outs, (("replicas", size),), frame)
        self.values.update(zip(outs, outputs, strict=True))

    @whole
    def append_call(
        self,
        op: str,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        frame: int,
        writes: Sequence[int],
        call: hooks.FunctionCall | None = None,
        time: int | None = None,
    ) -> None:
        """Record a function call, which may have assigned some of its inputs."""
        ins, histories = self._operands(inputs)
        builder, facts = self._built(), self._built().facts
        self._latest_call = len(builder.eqns)
        if call is not None:
            facts.calls[self._latest_call] = call
        outs = self._define(outputs)
        self.values.update(zip(outs, outputs, strict=True))
        written = [histories[position] for position in writes]
        if call is not None and function_traits(call.function).scatters:
            self.copied_on_read.update(history.key for history in histories if history is not None)
        outs += tuple(self._update(history, opaque=True) for history in written if history is not None)
        if call is not None:
            for history in written:
                self._drop_uninitialized(history)
        builder.append(op, ins, outs, (), frame)
        if time is not None:
            facts.times.append(time)

    @whole
    def append_backward(
        self,
        name: str,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        function: Callable,
        place: Place,
        time: int,
    ) -> None:
        """Record `function` as the backward function from `outputs` to `inputs`, whatever ops produced them.

        The equation also takes the original outputs as inputs, so that the program stays in single assignment form
        and still says how to compute the outputs.
        """
        if self.follow_custom(name, outputs, inputs, function, place, time):
            return
        ins, _ = self._operands(inputs)
        made = tuple(self.var_of(tensor) for tensor in outputs)
        outs, builder = self._define(outputs), self._built()
        builder.facts.backward_functions[len(builder.eqns)] = BackwardFunction(function, ins, outs)
        builder.append(CUSTOM, ins + made, outs, (("name", name.encode()),), self.frames.number(place))
        builder.facts.times.append(time)

    @whole
    def attach_backward(self, outputs: Sequence[Tensor], count: int, function: Callable) -> None:
        """Set the backward function of the latest call, from `outputs` to its first `count` inputs."""
        index, builder = self._latest_call, self._built()
        outs = tuple(self.tensors.by_identity[identity_of(tensor)] for tensor in outputs)
        builder.facts.backward_functions[index] = BackwardFunction(function, builder.eqns[index].inputs[:count], outs)

    # ------------------------------------------------------------------ facts

    def _append_host_read(self, identity: int, time: int, place: Place, method: str, moment: int) -> None:
        self._built().facts.host_reads.append(HostRead(identity, time, self.frames.number(place), method, moment))

    def add_body(self, key: tuple[tuple[int, ...], bool], body: Body) -> None:
        """Cache an inlined call for later queries."""
        self._built().facts.bodies[key] = body

    def add_moments(self, tensor: Tensor) -> None:
        """Record that `tf.nn.moments` stopped the gradient of a tensor."""
        self._builder.facts.moments.add(identity_of(tensor))


def new_trace(builder: Builder, guard: Any = None) -> Trace:
    """Return a trace of a program that was built rather than recorded: loaded, joined or replayed.

    Args:
      builder: The program, with a `FrameTable`; the caller may still append to it.
      guard: Checks its ops, if they come from a file.
    """
    trace = Recorder()
    trace._build(builder)
    trace.guard = guard
    return trace


def trace_of(run: Run) -> Trace:
    """Return a trace of the program of a template, which is built when somebody reads it; the run's data pass to it."""
    trace = Recorder()
    trace.begin_with(run)
    return trace
