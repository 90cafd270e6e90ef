"""Which vars a source reaches, where its paths end, and the equations in between; all in linear time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from retrotape.diagnose.why._explanation import Step
from retrotape.execute import Plan, make_plan
from retrotape.ir import CUSTOM, Frame, differentiable_inputs, reached_from, slice_to
from retrotape.record import Trace
from retrotape.tf import functions

# They pass their input on unchanged, and would only lengthen a path.
_TRIVIAL = frozenset(("Identity", "ReadVariableOp"))
# They read the shape alone: such a path is hardly ever the one that a query is about.
SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank", "OnesLike", "ZerosLike", "VariableShape"))


class Between:
    """What lies between a source and the targets in one trace."""

    def __init__(
        self,
        trace: Trace,
        targets: Sequence[int],
        sources: Sequence[int],
        through_updates: bool,
        since: int | None,
    ) -> None:
        self.trace, self.targets, self.sources = trace, targets, sources
        self.through_updates, self.since = through_updates, since
        self.eqns, self.producers = trace.program.eqns, trace.program.producers
        self.leading = slice_to(trace.program, targets)
        self.needed = {var for index in self.leading for var in self.eqns[index].inputs}.union(targets)
        _, self.touched = reached_from(trace.program, sources, self.leading)
        self._program = trace.program
        self._steps: dict[tuple[str, int], Step] = {}

    def plan(self) -> Plan:
        """Return the plan of the backward pass."""
        return make_plan(self.trace, self.targets, self.sources, self.through_updates, self.since)

    def is_touched(self) -> bool:
        """Return whether ops of any kind lead from the source to a target."""
        return not self.touched.isdisjoint(self.targets)

    def flowing(self, plan: Plan, dead: Collection[tuple[int, int]]) -> set[int]:
        """Return the vars through which a gradient could flow; none passes `dead` edges, equation and input."""
        discrete, nondifferentiable, stops = (
            self.trace.facts.discrete,
            self.trace.facts.nondifferentiable - plan.repaired,
            plan.stops,
        )
        reached = set(plan.sources)
        for index in self.leading:  # a tape has a hundred thousand of them
            eqn = self.eqns[index]
            inputs = differentiable_inputs(eqn)
            if reached.isdisjoint(inputs):
                continue
            if dead and all(var not in reached or (index, var) in dead for var in inputs):
                continue
            for var in eqn.outputs:
                if var not in discrete and var not in nondifferentiable and var not in stops:
                    reached.add(var)
        return reached

    def cuts(self, flowing: set[int]) -> list[int]:
        """Return the equations at which the path from the source to the targets ends; shape ops come last."""
        found = []
        for index in self.leading:
            eqn = self.eqns[index]
            if flowing.isdisjoint(eqn.inputs) or flowing.issuperset(eqn.outputs):
                continue
            if any(var in self.needed and var not in flowing for var in eqn.outputs):
                found.append(index)
        return sorted(found, key=lambda index: self.eqns[index].op in SHAPES)

    def copied_from(self) -> int | None:
        """Return what the source is a plain copy of, if that leads to a target."""
        if len(self.sources) != 1:
            return None
        var = self.sources[0]
        while self.producers[var] >= 0 and self.eqns[self.producers[var]].op in _TRIVIAL:
            var = self.eqns[self.producers[var]].inputs[0]
            if var in self.needed:
                return var
        return None

    # ------------------------------------------------------------------ in words

    def path(
        self,
        starts: Iterable[int],
        goals: Collection[int],
        within: Collection[int] | None = None,
        indices: Iterable[int] | None = None,
        dead: Collection[tuple[int, int]] = (),
    ) -> list[int]:
        """Return equations that lead from a start to a goal, in order; empty if there is no path.

        Args:
          starts: Where it begins.
          goals: Where it may end.
          within: The vars that it may pass; all if None.
          indices: The equations to go along, in order; those that lead to a target if None.
          dead: Edges, equation and input, that it does not pass.
        """
        came: dict[int, tuple[int, int]] = {}  # var → the equation that reached it, and from which var
        reached = set(starts)
        for index in self._after(reached) if indices is None else indices:
            eqn = self.eqns[index]
            if reached.isdisjoint(eqn.inputs):
                continue
            origin = next((var for var in eqn.inputs if var in reached and (index, var) not in dead), None)
            if origin is None:
                continue
            for var in eqn.outputs:
                if var not in reached and (within is None or var in within):
                    came[var] = index, origin
                    reached.add(var)
        found = max((var for var in goals if var in reached), default=None)
        path: list[int] = []
        while found in came:
            index, found = came[found]
            path.append(index)
        return path[::-1]

    def _after(self, starts: Collection[int]) -> list[int]:
        """Return the equations that lead to a target, without those that ran before any of `starts` was made."""
        first = min((self.producers[var] for var in starts), default=0)
        return self.leading[bisect_right(self.leading, first) :]

    def steps(self, path: Iterable[int]) -> tuple[Step, ...]:
        """Return equations as steps, without those that only pass a value on."""
        return tuple(self.step(index) for index in path if self.eqns[index].op not in _TRIVIAL)

    def step(self, index: int) -> Step:
        """Return an equation as a step."""
        eqn = self.eqns[index]
        key = eqn.op, eqn.frame
        step = self._steps.get(key)
        if step is None:
            called = self.trace.frames.called(eqn.frame)
            saved = self.trace.frames.saved_code(eqn.frame) or ""
            step = Step(title_of(self.trace, index), self._program.frame_of(eqn), called, saved)
            if eqn.op != CUSTOM:
                self._steps[key] = step  # a loop runs the same ops at the same lines, over and over
        return step

    def path_anywhere(self, var: int) -> list[int]:
        """Return equations that lead from the source to a var, which need not lead to a target."""
        return self.path(self.sources, [var], indices=range(len(self.eqns)))

    def frame(self, number: int) -> Frame:
        """Return a line of user code."""
        return self._program.frames[number]

    def reached(self) -> set[int]:
        """Return every var that the source reaches, whether it leads to a target or not."""
        return reached_from(self.trace.program, self.sources, range(len(self.eqns)))[1]

    def reached_elsewhere(self) -> tuple[Step, ...]:
        """Return the ops that the source reaches at all."""
        indices, _ = reached_from(self.trace.program, self.sources, range(len(self.eqns)))
        return self.steps(indices)

    def first_work(self, index: int) -> int:
        """Return the first equation from `index` on that does more than pass its input on."""
        while index < len(self.eqns) and self.eqns[index].op in _TRIVIAL:
            index += 1
        return index

    def origin(self, var: int) -> int:
        """Return what a var is a plain copy of; itself if it is not a copy."""
        while self.producers[var] >= 0 and self.eqns[self.producers[var]].op in _TRIVIAL:
            var = self.eqns[self.producers[var]].inputs[0]
        return var

    def name_of(self, var: int) -> str:
        """Return the name of a var for messages."""
        history = self.trace.facts.history_of.get(var)
        if history is not None:
            return self.trace.name_of(history)
        kind = self.trace.program.types[var]
        if self.producers[var] < 0:
            return f"a tensor {kind}"
        return f"the result of {self.step(self.producers[var])}"


def title_of(trace: Trace, index: int) -> str:
    """Return the name of the op of an equation for messages."""
    eqn, call = trace.program.eqns[index], trace.facts.calls.get(index)
    if call is not None:
        return f"tf.function {functions.graph_of(call.function).name!r}"
    attrs: dict[str, Any] = dict(eqn.attrs)
    return f"custom gradient {attrs['name'].decode()!r}" if eqn.op == CUSTOM else eqn.op
