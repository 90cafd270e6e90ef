"""Joins several traces into one, in execution order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrotape._types import Handle
from retrotape.errors import TapeUseError
from retrotape.ir import BackwardFunction, Builder, Eqn, Facts, VariableHistory
from retrotape.record import RESOURCE, FrameTable, Trace, new_trace, next_time
from retrotape.tf.buffers import share_buffer
from retrotape.tf.core import identity_of

TraceVar = tuple[int, int]  # which trace, and a var of it


def join(traces: Sequence[Trace], links: Mapping[TraceVar, TraceVar] | None = None) -> Trace:
    """Return one trace of all equations; shared tensors, shared variables and links connect the traces.

    A link identifies a leaf of a later trace with a var of another one. An op that two traces recorded counts once. If
    a variable's value at the first read of a trace differs from its value at the end of the previous trace, an update
    was not recorded, and the new value has no history.
    """
    joiner = Joiner(traces, links)
    joiner.add_all()
    return joiner.joined


def _common_clock(traces: Sequence[Trace], links: Mapping[TraceVar, TraceVar]) -> list[dict[int, int]]:
    """Return, for each trace, a map from its times to common ones: a trace comes after those that it takes values from.

    Traces from different processes have no common clock.
    """
    needs = [{there for (here, _), (there, _) in links.items() if here == which} for which in range(len(traces))]
    moved: list[dict[int, int]] = [{} for _ in traces]
    waiting = set(range(len(traces)))
    while waiting:
        ready = [which for which in sorted(waiting) if not needs[which] & waiting]
        if not ready:
            raise TapeUseError("connect= has a cycle: each tape takes a value from another one. Remove one link.")
        for which in ready:
            times = traces[which].facts.times
            before = [moved[other].get(time, time) for other in needs[which] for time in traces[other].facts.times]
            if times and before and max(before) >= min(times):
                moved[which] = {time: next_time() for time in sorted(all_times(traces[which].facts))}
        waiting.difference_update(ready)
    return moved


def all_times(facts: Facts) -> set[int]:
    """Return the times of equations, host reads and layer calls."""
    calls = (time for call in facts.layer_calls.values() for time in (call.begin, call.end))
    return {*facts.times, *(read.time for read in facts.host_reads), *calls}


class Joiner:
    """Copies the equations of several traces into a new one, each once.

    Args:
      traces: The traces.
      links: As for `join`.
      builder: Where to append; new by default.
      joined: The trace of this builder.

    Attributes:
      builder: The program of the new trace.
      joined: The new trace.
      maps: For each trace, its vars as vars of the new one.
    """

    def __init__(
        self,
        traces: Sequence[Trace],
        links: Mapping[TraceVar, TraceVar] | None = None,
        builder: Builder | None = None,
        joined: Trace | None = None,
    ) -> None:
        self.builder = Builder(frames=FrameTable()) if builder is None else builder
        self.joined = new_trace(self.builder) if joined is None else joined
        self._links = links or {}
        self._traces: list[Trace] = []
        self.maps: list[dict[int, int]] = []
        self._copied: dict[int, Eqn] = {}  # by time
        self._identities: list[dict[int, list[int]]] = []
        self._newest: dict[int, int] = {}  # by `id` of a history: the newest of its versions that was copied
        for trace in traces:
            self._include(trace, {})

    def _include(self, trace: Trace, known: dict[int, int]) -> int:
        """Add a trace, some of whose vars already have counterparts; return its number."""
        self._traces.append(trace)
        self.maps.append(known)
        self._identities.append(trace.tensors.identities())
        return len(self._traces) - 1

    def add_all(self) -> bool:
        """Copy all traces; return whether nothing but the equations added vars and frames.

        Then these have the same numbers as in a join with traces that ran later.
        """
        traces = self._traces
        moved = _common_clock(traces, self._links)
        if self.joined.guard is None:
            self.joined.guard = next((trace.guard for trace in traces if trace.guard is not None), None)
        positions = [
            (moved[which].get(time, time), which, index)
            for which, trace in enumerate(traces)
            for index, time in enumerate(trace.facts.times)
        ]
        for time, which, index in sorted(positions):
            self.add(which, index, time)
        sizes = self.builder.sizes()
        for which, trace in enumerate(traces):
            self.finish(which, trace, moved[which])
        return sizes == self.builder.sizes()

    def add(self, which: int, index: int, time: int) -> None:
        """Copy an equation, unless another trace has recorded it too."""
        trace, builder = self._traces[which], self.builder
        eqn = trace.program.eqns[index]
        twin = self._copied.get(time)
        if twin is not None and len(twin.outputs) == len(eqn.outputs):
            for var, same_var in zip(eqn.outputs, twin.outputs, strict=True):
                self._connect(which, var, same_var)
            for var, same_var in zip(eqn.inputs, twin.inputs, strict=False):
                if var not in self.maps[which]:
                    self._connect(which, var, same_var)
            return
        inputs = tuple(self._present(which, var) for var in eqn.inputs)
        outputs = builder.define([trace.program.types[var] for var in eqn.outputs])
        number = len(builder.eqns)
        for var, new in zip(eqn.outputs, outputs, strict=True):
            self._connect(which, var, new)
            self._copy_version(trace, var, new, number)
        frame = self.joined.frames.number(trace.frames.place(eqn.frame))
        builder.append(eqn.op, inputs, outputs, eqn.attrs, frame)
        builder.facts.times.append(time)
        self._copied[time] = builder.eqns[-1]
        self._copy_facts(which, index, number)

    def _copy_facts(self, which: int, index: int, number: int) -> None:
        theirs, facts = self._traces[which].facts, self.builder.facts
        back = theirs.backward_functions.get(index)
        if back is not None:
            inputs = tuple(self._var(which, var) for var in back.inputs)
            outputs = tuple(self.maps[which][var] for var in back.outputs)
            captures = tuple(self._var(which, var) for var in back.captures)
            facts.backward_functions[number] = BackwardFunction(back.function, inputs, outputs, captures)
        if index in theirs.recomputed:
            facts.recomputed.add(number)
        if index in theirs.calls:
            facts.calls[number] = theirs.calls[index]

    def _connect(self, which: int, var: int, new: int) -> None:
        """Map a var of one trace to a var of the joined one, and copy its value and tensors."""
        trace, joined, facts = self._traces[which], self.joined, self.builder.facts
        self.maps[which][var] = new
        if var in trace.values:
            joined.values.setdefault(new, trace.values[var])
        for identity in self._identities[which].get(var, ()):
            joined.tensors.alias(identity, new)
        if var in trace.facts.discrete:
            facts.discrete.add(new)
        if var in trace.facts.nondifferentiable:
            facts.nondifferentiable.add(new)

    def _copy_version(self, trace: Trace, var: int, new: int, number: int) -> None:
        history = trace.facts.history_of.get(var)
        if history is None:
            return
        facts = self.builder.facts
        handle = self._handle_of(history)
        facts.add_version(identity_of(handle), handle, new, number)
        facts.assigned.add(new)
        self._newest[id(history)] = var
        if var in trace.facts.opaque:
            facts.opaque.add(new)

    def _handle_of(self, history: VariableHistory) -> Handle:
        return history.handle

    def _present(self, which: int, var: int) -> int:
        """Return the current var for an input: for a variable, its newest value, whichever trace recorded it.

        An older value than the newest that this trace itself has recorded stays: replicas that share a variable read
        what it held before any of them assigned to it.
        """
        is_known = var in self.maps[which]
        found, history = self._var(which, var), self._traces[which].facts.history_of.get(var)
        if history is None:
            return found
        if is_known and self._newest.get(id(history), var) != var:
            return found
        self._newest[id(history)] = var
        facts = self.builder.facts
        ours = facts.histories.get(identity_of(self._handle_of(history)))
        if ours is not None and facts.history_of.get(found) is ours:
            self.maps[which][var] = found = ours.current
        return found

    def _var(self, which: int, var: int) -> int:
        """Return the var of the joined trace for an input."""
        found = self.maps[which].get(var)
        if found is None:
            trace = self._traces[which]
            history, linked = trace.facts.history_of.get(var), self._links.get((which, var))
            if linked is not None:
                found = self._var(*linked)
            else:
                found = self._leaf(which, var) if history is None else self._entry(trace, var, history)
            self._connect(which, var, found)
        return found

    def _leaf(self, which: int, var: int) -> int:
        for identity in self._identities[which].get(var, ()):
            known = self.joined.tensors.get(identity)
            if known is not None:
                return known
        return self.builder.leaf(self._traces[which].program.types[var])

    def _entry(self, trace: Trace, var: int, history: VariableHistory) -> int:
        """Return the version that a variable has where a trace first reads it, or after an unrecorded update."""
        facts = self.builder.facts
        ours = facts.histories.get(history.key)
        if ours is not None:
            value = trace.value(var)
            held = self.joined.value(ours.current)
            known = held is not None and value is not None
            # An update that one trace did not record may be recorded by another.
            if share_buffer(held, value) if known else var not in trace.facts.unrecorded_updates:
                return ours.current
        version = self.builder.leaf(trace.program.types[var])
        facts.add_version(history.key, history.handle, version, len(self.builder.eqns) - 1)
        if ours is not None and var not in trace.facts.discrete:
            facts.unrecorded_updates.add(version)
        return version

    def finish(self, which: int, trace: Trace, moved: Mapping[int, int] = {}) -> None:
        """Copy facts that belong to no equation; `moved` maps old times to new ones."""
        joined, facts, program = self.joined, self.builder.facts, trace.program
        for var, kind in enumerate(program.types):
            if program.producers[var] < 0 and kind.dtype != RESOURCE:  # unused handles are dropped
                self._var(which, var)
        facts.moments.update(trace.facts.moments)
        for read in trace.facts.host_reads:
            frame = joined.frames.number(trace.frames.place(read.frame))
            facts.host_reads.append(read._replace(frame=frame, time=moved.get(read.time, read.time)))
        for identity, variable in trace.variables.items():
            joined.variables.setdefault(identity, variable)
        joined.owners.update(trace.owners)
        joined.wholes.update(trace.wholes)
        for call in trace.facts.layer_calls.values():
            begin, end = (moved.get(time, time) for time in (call.begin, call.end))
            facts.layer_calls[begin] = call._replace(begin=begin, end=end)
