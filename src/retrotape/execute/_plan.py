"""Which equations a query visits: those between its sources and its targets."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from retrotape.errors import UnseenUpdateError
from retrotape.execute._expand import expand
from retrotape.ir import CUSTOM, Eqn, Equations, differentiable_inputs, reached_from, slice_to
from retrotape.record import Trace
from retrotape.rules import repairable


@dataclass(frozen=True)
class Step:
    """One equation of a walk.

    Attributes:
      index: Its number.
      outputs: Its outputs; None for one that no path passes.
      inputs: Its inputs.
      whole: The sources whose cotangent is complete after this step.
    """

    index: int
    outputs: tuple[int | None, ...]
    inputs: tuple[int, ...]
    whole: list[int]


class Plan(NamedTuple):
    """The equations to visit in reverse, and the vars that need a cotangent.

    Attributes:
      program: The equations, and which of them makes each var.
      eqns: The equations by number.
      indices: Those to visit, in execution order.
      reached: The vars that depend on a source.
      sources: The vars whose cotangents are wanted.
      stops: Vars where a path may start, but that no path passes.
      through_updates: Whether paths pass through assignments.
      repaired: Vars behind a `stop_gradient` that is not meant for this derivative.
      renamed: For each value that an expanded call left in a variable, its var inside the call.
      rank: From equation index to execution order; None if the index is the order.
    """

    program: Equations
    eqns: Sequence[Eqn]
    indices: list[int]
    reached: set[int]
    sources: frozenset[int]
    stops: Collection[int]
    through_updates: bool
    repaired: frozenset[int]
    renamed: Mapping[int, int] = {}
    rank: Callable[[int], Any] | None = None

    def steps(self) -> Iterator[Step]:
        """Yield the equations breadth first, each after all that use its outputs.

        Any such order gives the same gradients up to rounding. This one is the stock tape's, so cotangents are added in
        the same order and their sums are bit-identical.
        """
        eqns, stops, reached = self.program.eqns, self.stops, self.reached
        makers: dict[int, int] = {}
        uses: Counter[int] = Counter()
        paths: dict[int, Sequence[int]] = {}  # by equation: the inputs that get a gradient
        for index in self.indices:
            eqn = eqns[index]
            paths[index] = eqn.inputs if eqn.op != CUSTOM else differentiable_inputs(eqn)
            makers.update((var, index) for var in eqn.outputs if var not in stops)
            uses.update(var for var in paths[index] if var in reached)
        ending = Counter(
            var for index in self.indices for var in eqns[index].inputs if var in self.sources and var not in makers
        )
        waiting = Counter(makers[var] for var in uses if var in makers)
        ready = deque(index for index in reversed(self.indices) if index not in waiting)
        while ready:
            index = ready.popleft()
            eqn = eqns[index]
            whole = _used_up(ending, eqn.inputs) if ending else []
            yield Step(index, tuple(None if var in stops else var for var in eqn.outputs), eqn.inputs, whole)
            for var in paths[index]:
                if var in uses:
                    uses[var] -= 1
                    if uses[var] == 0 and var in makers:
                        waiting[makers[var]] -= 1
                        if waiting[makers[var]] == 0:
                            ready.append(makers[var])


def _used_up(counts: Counter[int], variables: Iterable[int]) -> list[int]:
    """Decrement the use counts of vars, and return those with no uses left."""
    found = []
    for var in variables:
        if var in counts:
            counts[var] -= 1
            if counts[var] == 0:
                found.append(var)
    return found


def make_plan(
    trace: Trace,
    targets: Iterable[int],
    sources: Iterable[int],
    through_updates: bool,
    since: int | None = None,
) -> Plan:
    """Return the plan for the gradients of `targets` with respect to `sources`.

    Without `through_updates`, an assignment ends every path, as it does on the stock tape: an assigned value may start
    a path, but no path passes it. With `since`, that holds only for value number `since` of each variable, and for
    none after it.
    """
    facts = trace.facts
    if not through_updates:
        targets = list(targets)
        program, _, rank = expand(trace, targets, frozenset()) if trace.inlined else (trace.program, {}, None)
        return _between(trace, program, targets, frozenset(sources), facts.assigned, False, rank=rank)
    stops: frozenset[int] = frozenset()
    if since is not None:
        stops = frozenset(history.number(since) for history in facts.histories.values())
    targets, wanted = list(targets), frozenset(sources) - facts.discrete
    program, renamed, rank = expand(trace, targets, wanted | stops)
    stops = frozenset(renamed.get(var, var) for var in stops)
    moved = frozenset(renamed.get(var, var) for var in wanted)
    plan = _between(trace, program, targets, moved, stops, True, renamed, rank)
    if _unrecorded_update(trace, program, targets, stops) is not None:
        for source in plan.sources:  # each is planned as if it were the only one
            _refuse_unrecorded_updates(trace, program, targets, stops | {source})
    return plan


def make_plans(
    trace: Trace,
    targets: Sequence[Sequence[int]],
    sources: Iterable[int],
    through_updates: bool,
    since: int | None = None,
) -> tuple[Plan, list[Plan]]:
    """Return the plan for all targets together, and one for each target as `make_plan` makes it.

    What the sources reach is computed once, for it does not depend on the target.
    """
    whole = make_plan(trace, [var for group in targets for var in group], sources, through_updates, since)
    kept, stopped, program = set(whole.indices), trace.stopped_by_moments(), whole.program
    plans = []
    for group in targets:
        indices = _ordered(slice_to(program, group, whole.stops, differentiable=True), whole.rank)
        if repairable(program, indices, stopped) == whole.repaired:
            plans.append(whole._replace(indices=[index for index in indices if index in kept]))
        else:  # a `stop_gradient` applies to one target and not to another
            given = (whole.sources, whole.stops, through_updates, whole.renamed, whole.rank)
            plans.append(_between(trace, program, group, *given))
    return whole, plans


def _ordered(indices: list[int], rank: Callable[[int], Any] | None) -> list[int]:
    """Return indices in an order where each equation follows the producers of its inputs."""
    return indices if rank is None else sorted(indices, key=rank)


def _refuse_unrecorded_updates(
    trace: Trace, program: Equations, targets: Sequence[int], stops: Collection[int]
) -> None:
    """Raise if the targets depend, beyond `stops`, on a value that a variable got by an unrecorded update."""
    var = _unrecorded_update(trace, program, targets, stops)
    if var is not None:
        raise UnseenUpdateError(trace.name_of(trace.facts.history_of[var]))


def _unrecorded_update(trace: Trace, program: Equations, targets: Sequence[int], stops: Collection[int]) -> int | None:
    unrecorded = trace.facts.unrecorded_updates
    if not unrecorded:
        return None
    indices = slice_to(program, targets, stops, differentiable=True)
    read = {var for index in indices for var in differentiable_inputs(program.eqns[index])}.union(targets)
    return min((var for var in read & unrecorded if var not in stops), default=None)


def plan_between(trace: Trace, targets: Iterable[int], sources: Iterable[int]) -> Plan:
    """Return the plan for the equations between `targets` and `sources`, and none before the sources."""
    wanted = frozenset(sources)
    return _between(trace, trace.program, targets, wanted, wanted, True)


def _between(
    trace: Trace,
    program: Equations,
    targets: Iterable[int],
    sources: frozenset[int],
    stops: Collection[int],
    through_updates: bool,
    renamed: Mapping[int, int] = {},
    rank: Callable[[int], Any] | None = None,
) -> Plan:
    facts = trace.facts
    stopped = trace.stopped_by_moments() if facts.moments else ()
    wanted = sources - facts.discrete
    indices = _ordered(slice_to(program, targets, stops, differentiable=True), rank)
    repaired = repairable(program, indices, stopped) if stopped else frozenset()
    blocked = facts.nondifferentiable - repaired if repaired else facts.nondifferentiable
    kept, reached = reached_from(program, wanted, indices, (facts.discrete, blocked, stops))
    return Plan(program, program.eqns, kept, reached, wanted, stops, through_updates, repaired, renamed, rank)
