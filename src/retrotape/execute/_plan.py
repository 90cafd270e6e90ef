"""Which equations a question concerns: those between its sources and its targets."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from retrotape.errors import UnseenUpdateError
from retrotape.execute._expand import View, expand
from retrotape.ir import Eqn, reached_from, slice_to
from retrotape.record import CUSTOM, Recording
from retrotape.rules import repairable


class Plan(NamedTuple):
    """The equations to go back through, and the vars for which a cotangent is wanted at all."""

    eqns: Sequence[Eqn]
    indices: list[int]
    reached: set[int]
    sources: frozenset[int]
    stops: Collection[int]  # vars that paths may start from but do not pass
    through_updates: bool
    repaired: frozenset[int]  # vars behind a `stop_gradient` that is not meant for this derivative
    view: View  # of the equations

    def asks(self, var: int, cotangent: object) -> bool:
        """Say whether a cotangent is one of those that were asked for."""
        return cotangent is not None and var in self.sources

    def ends(self) -> Counter[int]:
        """Return the sources at which paths end, each with the number of times that it is used."""
        made = {var for index in self.indices for var in self.eqns[index].outputs if var not in self.stops}
        wanted = self.sources - made
        return Counter(var for index in self.indices for var in self.eqns[index].inputs if var in wanted)

    def order(self) -> Iterator[int]:
        """Yield the equations so that each comes after all that use it, breadth first.

        Any such order gives the same gradients but for rounding. This one is the stock tape's, so that cotangents
        meet in the same order and their sums are the same to the bit.
        """
        makers: dict[int, int] = {}
        uses: Counter[int] = Counter()
        for index in self.indices:
            eqn = self.eqns[index]
            makers.update((var, index) for var in eqn.outputs if var not in self.stops)
            uses.update(var for var in differentiable_inputs(eqn) if var in self.reached)
        waiting = Counter(makers[var] for var in uses if var in makers)
        ready = deque(index for index in reversed(self.indices) if index not in waiting)
        while ready:
            index = ready.popleft()
            yield index
            for var in differentiable_inputs(self.eqns[index]):
                if var in uses:
                    uses[var] -= 1
                    if uses[var] == 0 and var in makers:
                        waiting[makers[var]] -= 1
                        if waiting[makers[var]] == 0:
                            ready.append(makers[var])


def differentiable_inputs(eqn: Eqn) -> Sequence[int]:
    """Return the inputs of an equation without what the body of a custom gradient made: no gradient goes there."""
    return eqn.inputs[: len(eqn.inputs) - len(eqn.outputs)] if eqn.op == CUSTOM else eqn.inputs


def make_plan(
    recording: Recording,
    targets: Iterable[int],
    sources: Iterable[int],
    through_updates: bool,
    since: int | None = None,
) -> Plan:
    """Return the plan for the gradients of `targets` by `sources`.

    Without `through_updates` an assignment ends every path, as it does on the stock tape: what a variable
    was given is then a place where paths may start, not a place that they pass. With `since`, that holds for
    value number `since` of each variable, and for none after it.
    """
    stops: Collection[int]
    if not through_updates:
        stops = recording.assigned
    elif since is None:
        stops = frozenset()
    else:
        stops = frozenset(cell.number(since) for cell in recording.cells.values())
    if not through_updates:
        return _between(recording, View(recording.builder), targets, frozenset(sources), stops, through_updates)
    targets, sources = list(targets), frozenset(sources) - recording.inert
    view = expand(recording, targets, sources.union(stops), differentiable_inputs)
    stops = frozenset(view.renamed.get(var, var) for var in stops)
    plan = _between(
        recording, view, targets, frozenset(view.renamed.get(var, var) for var in sources), stops, through_updates
    )
    gap = _meets_gap(recording, view, targets, stops)
    for source in plan.sources if gap is not None else ():
        _refuse_gaps(recording, view, targets, stops | {source})  # each as if it were the only one
    return plan


def make_plans(
    recording: Recording,
    targets: Sequence[Sequence[int]],
    sources: Iterable[int],
    through_updates: bool,
    since: int | None = None,
) -> tuple[Plan, list[Plan]]:
    """Return the plan for all targets together, and one for each of them as `make_plan` makes it.

    What the sources reach is looked for once: for what a target depends on, it does not matter what else there is.
    """
    whole = make_plan(recording, [var for group in targets for var in group], sources, through_updates, since)
    kept, stopped, program = set(whole.indices), recording.stopped_by_moments(), whole.view.program
    plans = []
    for group in targets:
        indices = whole.view.sorted(slice_to(program, group, whole.stops, differentiable_inputs))
        if repairable(program, indices, stopped) == whole.repaired:
            plans.append(whole._replace(indices=[index for index in indices if index in kept]))
        else:  # a `stop_gradient` is passed on the way to one target and not on the way to another
            plans.append(_between(recording, whole.view, group, whole.sources, whole.stops, through_updates))
    return whole, plans


def _refuse_gaps(recording: Recording, view: View, targets: Sequence[int], stops: Collection[int]) -> None:
    """Raise where the targets depend, beyond `stops`, on a value that a variable got by an unrecorded update."""
    var = _meets_gap(recording, view, targets, stops)
    if var is not None:
        raise UnseenUpdateError(recording.name_of(recording.cell_of[var]))


def _meets_gap(recording: Recording, view: View, targets: Sequence[int], stops: Collection[int]) -> int | None:
    if not recording.gaps:
        return None
    eqns = view.program.eqns
    indices = slice_to(view.program, targets, stops, differentiable_inputs)
    seen = {var for index in indices for var in differentiable_inputs(eqns[index])}.union(targets)
    return min((var for var in seen & recording.gaps if var not in stops), default=None)


def plan_between(recording: Recording, targets: Iterable[int], sources: Iterable[int]) -> Plan:
    """Return the plan for what lies between `targets` and `sources`, and nothing before the sources."""
    wanted = frozenset(sources)
    return _between(recording, View(recording.builder), targets, wanted, wanted, True)


def _between(
    recording: Recording,
    view: View,
    targets: Iterable[int],
    sources: frozenset[int],
    stops: Collection[int],
    through_updates: bool,
) -> Plan:
    program = view.program
    wanted = sources - recording.inert
    indices = view.sorted(slice_to(program, targets, stops, differentiable_inputs))
    repaired = repairable(program, indices, recording.stopped_by_moments())
    ends = recording.ends - repaired if repaired else recording.ends
    kept, reached = reached_from(program, wanted, indices, (recording.inert, ends, stops))
    return Plan(program.eqns, kept, reached, wanted, stops, through_updates, repaired, view)
