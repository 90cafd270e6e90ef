"""Flattens a trace: replaces each function call by the ops that it ran.

A `tf.function` exists only in the process that traced it. A file that has only TensorFlow ops needs no functions, and
cannot contain recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from retrotape._types import Handle, Tensor
from retrotape.errors import LostValueError, NotPersistableError, OpaqueUpdateError
from retrotape.execute import CallGradient, Values, held_inputs, operands_of, run_function
from retrotape.ir import CUSTOM, DType, Eqn, Func, GrowingFacts, VariableHistory
from retrotape.record import (
    Kind,
    Recorder,
    Trace,
    chain_of,
    current_stack,
    function_traits,
    is_repeatable,
    traits,
)
from retrotape.tf import functions
from retrotape.tf.core import identity_of, tf
from retrotape.transform._join import Joiner
from retrotape.transform._times import order_times


def flatten(trace: Trace, freeze: Collection[str] = (), keep: Callable[[Any], bool] | None = None) -> Trace:
    """Return the same trace with every call inlined.

    Args:
      trace: The trace.
      freeze: The names of calls that are replaced by their outputs.
      keep: Whether a function without effects is called by an op of TensorFlow in this process, instead of inlined.
    """
    return Flattener(trace, freeze, keep).flatten()


def flatten_if_possible(trace: Trace) -> Trace:
    """Return the same trace with every call inlined; unchanged if it has none, or if one cannot be inlined.

    To inline a call, its ops run one by one; a function that XLA compiles may have an op for which eager code has no
    kernel.
    """
    if not trace.facts.calls:
        return trace
    try:
        return flatten(trace)
    except (NotPersistableError, OpaqueUpdateError, LostValueError, tf.errors.OpError):
        return trace


class Flattener(Joiner):
    """Copies a trace with its calls inlined."""

    def __init__(self, trace: Trace, freeze: Collection[str] = (), keep: Callable[[Any], bool] | None = None) -> None:
        super().__init__([trace])
        self._keeps = keep
        self._dropped: set[int] = set()  # outputs of equations that nothing uses, and that are not copied
        self.joined.guard = trace.guard
        self._freeze = freeze
        self._used = {var for eqn in trace.program.eqns for var in eqn.inputs}
        self._values = Values(trace)
        self._originals: dict[int, Handle] = {}  # handle of a stand-in → handle of the variable

    @property
    def facts(self) -> GrowingFacts:
        """The facts of the new trace, writable."""
        return self.builder.facts

    def flatten(self) -> Trace:
        """Return the trace without calls."""
        trace, eqns, times = self._traces[0], self.builder.eqns, list[int]()
        for index, time in enumerate(trace.facts.times):
            self.add(0, index, time)
            times += [time] * (len(eqns) - len(times))  # ops inside a call get the time of the call
        self.finish(0, trace)
        frames = self.joined.frames
        order_times(self.builder.facts, times, [chain_of(frames.place(eqn.frame)) for eqn in eqns])
        return self.joined

    def add(self, which: int, index: int, time: int) -> None:
        """Copy an equation; for a call, the equations inside it."""
        trace = self._traces[which]
        eqn = trace.program.eqns[index]
        if not self._dropped.isdisjoint(eqn.outputs):
            return
        if eqn.op == CUSTOM and self._splice_gradient(index, eqn):
            return
        if traits(eqn.op).kind is not Kind.CALL or eqn.op == CUSTOM:
            super().add(which, index, time)
            return
        call = trace.facts.calls.get(index)
        name = eqn.op if call is None else functions.graph_of(call.function).name
        if name in self._freeze:
            self._keep_outputs(eqn)
            return
        where = str(trace.program.frames[eqn.frame])
        if call is None:
            raise NotPersistableError(index, name, where, "its body is not known")
        if not function_traits(call.function).deterministic:
            ops = ", ".join(sorted({op for op in functions.operations_within(call.function) if not is_repeatable(op)}))
            raise NotPersistableError(
                index,
                name,
                where,
                f"inside a tf.function, {ops} cannot be run again to the same effect",
                "do that outside, draw with `tf.random.stateless_*`, or `tf.config.run_functions_eagerly(True)`",
            )
        if self._keeps is not None and self._keeps(call.function) and self._keep_call(eqn, call.function, time):
            return
        self._splice(eqn, call.function)

    def _keep_call(self, eqn: Eqn, function: Any, time: int) -> bool:
        """Copy a call as an op that calls the function; return whether that gives everything that is used."""
        trace = self._traces[0]
        count = len(functions.output_types(function))
        sides = frozenset(eqn.outputs[count:])  # values that only its derivative has a use for
        users = [one for one in trace.program.eqns if not sides.isdisjoint(one.inputs)] if sides else []
        if any(one.op != "ZerosLike" or not self._used.isdisjoint(one.outputs) for one in users):
            return False
        self._dropped |= {var for one in users for var in one.outputs}
        types = trace.program.types
        inputs = tuple(self._present(0, var) for var in eqn.inputs)
        outputs = self.builder.define([types[var] for var in eqn.outputs[:count]])
        for var, new in zip(eqn.outputs, outputs, strict=False):
            self._connect(0, var, new)
        attrs = (
            ("Tin", tuple(DType(types[var].dtype) for var in eqn.inputs)),
            ("Tout", tuple(DType(types[var].dtype) for var in eqn.outputs[:count])),
            ("config", b""),
            ("config_proto", b""),
            ("executor_type", b""),
            ("f", Func(functions.function_name(function))),
        )
        frame = self.joined.frames.number(trace.frames.place(eqn.frame))
        self.builder.append("PartitionedCall", inputs, outputs, attrs, frame)
        self.builder.facts.times.append(time)
        return True

    def _keep_outputs(self, eqn: Eqn) -> None:
        """Turn the outputs of a call, and the values that it assigned, into leaves."""
        trace, flat, facts = self._traces[0], self.joined, self.builder.facts
        for var in eqn.outputs:
            leaf = self.builder.leaf(trace.program.types[var])
            flat.values[leaf] = self._values(var)
            self._connect(0, var, leaf)
            history = trace.facts.history_of.get(var)
            if history is not None:
                facts.add_version(history.key, history.handle, leaf, len(self.builder.eqns) - 1)
                facts.unrecorded_updates.update(() if var in trace.facts.discrete else (leaf,))

    def _splice(self, eqn: Eqn, function: Any) -> None:
        """Replace a call by the equations inside it."""
        trace = self._traces[0]
        plain = [var for var in eqn.outputs if var not in trace.facts.history_of]
        sides = plain[len(functions.output_types(function)) :]
        body = function if self._used.isdisjoint(sides) else functions.WithSides(eqn.op, function)
        held = held_inputs(trace, function, eqn.inputs)
        which, made, given = self._run_inside(eqn, body, eqn.inputs, held)
        for var, new in zip(plain, made, strict=False):
            if new is not None:
                self._connect(0, var, new)
        versions = [var for var in eqn.outputs if var in trace.facts.history_of]
        histories = [
            self._traces[which].facts.histories.get(identity_of(given[position]))
            for position in function_traits(function).writes
        ]
        for var, history in zip(versions, [history for history in histories if history is not None], strict=True):
            self._connect(0, var, self.maps[which][history.current])

    def _splice_gradient(self, index: int, eqn: Eqn) -> bool:
        """Replace an equation by the ops of a function's gradient, if it is one; return whether it is.

        Of a gradient of a call that was computed inside the block, only the values were recorded, not the ops.
        """
        back = self._traces[0].facts.backward_functions[index].function
        if not isinstance(back, CallGradient):
            return False
        gradient, trace = back.gradient(), self._traces[0]
        count = len(eqn.inputs) - len(eqn.outputs)  # the remaining inputs are its results
        known = dict(
            zip([identity_of(t) for t in back.captured], eqn.inputs[count - len(back.captured) : count], strict=True)
        )
        inputs = [*eqn.inputs[: count - len(back.captured)], *(known.get(identity_of(t)) for t in gradient.constants)]
        held = held_inputs(trace, gradient, inputs)
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
        """Run a function op by op; return the number of its trace, the vars of its results, and its arguments.

        An input that is None is one of the constants, which come last.
        """
        trace, inner = self._traces[0], Recorder()
        recorded = iter(operands_of(trace, function, [var for var in inputs if var is not None], self._values))
        rest = [None] * (len(inputs) - len(constants))
        operands = _distinct(
            [
                constant if var is None else next(recorded)
                for var, constant in zip(inputs, [*rest, *constants], strict=True)
            ]
        )
        place = trace.frames.place(eqn.frame)
        results, given = run_function(inner, function, operands, held, place)
        known: dict[int, int] = {}
        for var, operand, handle in zip(inputs, operands, given, strict=True):
            if var is None:
                continue
            history = inner.facts.histories.get(identity_of(handle))
            found = inner.tensors.find(operand) if history is None else history.versions[0]
            if history is not None and var in trace.facts.history_of:
                self._originals[identity_of(handle)] = trace.facts.history_of[var].handle
                self.joined.stand_ins[identity_of(handle)] = identity_of(trace.facts.history_of[var].handle)
            if found is not None:
                known[found] = self._var(0, var)
                self._identify(operand, known[found])
                if var in trace.facts.uninitialized:
                    self.joined.values.setdefault(known[found], operand)
        which = self._include(inner, known)
        for index, time in enumerate(inner.facts.times):
            super().add(which, index, time)
        self.finish(which, inner)
        by_operand = {id(operand): var for operand, var in zip(operands, inputs, strict=True) if var is not None}
        # A handle among the results is only an output for the call's derivative, and carries no gradient.
        made = [None if t.dtype == tf.resource else self._result(which, t, by_operand) for t in results]
        return which, made, given

    def _identify(self, operand: Tensor, var: int) -> None:
        """Identify an operand by its var: a custom gradient inside a call captures the tensor, recomputed or copied."""
        if self.joined.tensors.find(operand) is None:
            self.joined.tensors.alias(identity_of(operand), var)

    def _result(self, which: int, tensor: Tensor, operands: Mapping[int, int]) -> int:
        """Return the var of a result: computed in the body, or an argument returned unchanged."""
        var = self._traces[which].tensors.find(tensor)
        if var is not None:
            return self.maps[which][var]
        given = operands.get(id(tensor))
        return self.joined.var_of(tensor) if given is None else self._var(0, given)

    def _entry(self, trace: Trace, var: int, history: VariableHistory) -> int:
        """Return the version that a variable has on entry; there is no other trace to share one with."""
        facts = self.builder.facts
        known = history.key in facts.histories
        version = self.builder.leaf(trace.program.types[var])
        facts.add_version(history.key, history.handle, version, len(self.builder.eqns) - 1)
        facts.unrecorded_updates.update((version,) if known and var not in trace.facts.discrete else ())
        return version

    def _handle_of(self, history: VariableHistory) -> Handle:
        return self._originals.get(history.key, history.handle)


def _distinct(operands: list[Tensor]) -> list[Tensor]:
    """Return copies where a tensor repeats: a variable's value and the result of a read are the same tensor."""
    seen: set[int] = set()
    found = []
    for operand in operands:
        if id(operand) in seen:
            with current_stack().unrecorded():
                operand = tf.identity(operand)
        seen.add(id(operand))
        found.append(operand)
    return found
