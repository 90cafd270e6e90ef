"""A query in terms of vars, and its result."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape._types import Cotangent, Tensor, Vjp
from retrotape.execute._beside_stock import hidden, must_refuse, refusing
from retrotape.execute._plan import Plan, make_plan
from retrotape.execute._vjp import RuleVjp
from retrotape.execute._walk import add, walk
from retrotape.record import Trace
from retrotape.tf.core import identity_of
from retrotape.tf.nests import Fitted, Ones

Walker = Callable[[Plan, Mapping[int, Sequence[Cotangent]], Vjp], Iterator[tuple[int, Cotangent]]]


class Query(NamedTuple):
    """The gradients of the targets, weighted by the seeds and summed, with respect to each of the sources.

    A source has several vars if it is a variable that was assigned: every value that it had counts.
    """

    targets: tuple[int, ...]
    seeds: tuple[Tensor | None, ...]
    sources: tuple[tuple[int, ...], ...]
    through_updates: bool
    since: int | None = None

    def plan(self, trace: Trace) -> Plan:
        """Return the plan: the equations that the query visits."""
        wanted = [var for source in self.all_sources(trace) for var in source]
        return make_plan(trace, self.targets, wanted, self.through_updates, self.since)

    def all_sources(self, trace: Trace) -> list[tuple[int, ...]]:
        """Return the vars of each source; for a variable, include the values that inlined calls assigned to it.

        Where assignments end paths, every read of a variable counts, also one that follows an assignment inside a call.
        """
        if self.through_updates or not trace.facts.bodies:
            return list(self.sources)
        return [(*source, *_assigned_inside(trace, source)) for source in self.sources]


class Request(NamedTuple):
    """What the user requested: the targets, and sources of both kinds in the order given.

    Attributes:
      targets: Vars.
      seeds: The cotangent of each target.
      sources: The vars of each source.
      through: For each source, whether paths pass through updates.
      since: How far back paths go through updates.
      derived_from: If targets are results of earlier queries, the requests of those queries.
      outside: In a graph, the same sources as this tape recorded them in eager code.
      left_out: Targets with a dtype that has no derivative.
    """

    targets: tuple[int, ...]
    seeds: tuple[Tensor | Fitted | Ones, ...]
    sources: tuple[tuple[int, ...], ...]
    through: tuple[bool, ...]
    since: int | None
    derived_from: tuple[Request, ...] = ()
    outside: tuple[tuple[int, ...], ...] = ()
    left_out: tuple[Any, ...] = ()

    def flowing(self) -> tuple[Tensor, ...]:
        """Return the cotangents of the targets, in the targets' shapes."""
        return tuple(seed.tensor() if isinstance(seed, (Fitted, Ones)) else seed for seed in self.seeds)

    def given_seeds(self) -> list[Tensor]:
        """Return the cotangents that the user gave."""
        given = [seed.seed if isinstance(seed, Fitted) else seed for seed in self.seeds]
        return [seed for seed in given if not isinstance(seed, Ones)]

    def key(self) -> Hashable:
        """Return what is requested, without the values of the cotangents."""
        given = tuple(not isinstance(seed, Ones) for seed in self.seeds)
        return self.targets, given, self.sources, self.through, self.since

    def queries(self) -> list[tuple[list[int], Query]]:
        """Return one query for sources whose paths end at assignments, one for the rest, and the positions of each."""
        found = []
        seeds = self.flowing()
        for through in (False, True):
            positions = [position for position, kind in enumerate(self.through) if kind is through]
            if positions:
                chosen = tuple(self.sources[position] for position in positions)
                found.append((positions, Query(self.targets, seeds, chosen, through, self.since)))
        return found


def differentiate(
    trace: Trace,
    query: Query,
    operations: Sequence[Any] | None = None,
    plan: Plan | None = None,
    vjp: Vjp | None = None,
    releases: bool = False,
    walker: Walker = walk,
) -> list[Cotangent | None]:
    """Return one cotangent for each source, None where there is no path."""
    found: list[Cotangent | None] = [None] * len(query.sources)
    for position, cotangent in stream(trace, query, operations, plan, vjp, releases, walker):
        found[position] = cotangent
    return found


def stream(
    trace: Trace,
    query: Query,
    operations: Sequence[Any] | None = None,
    plan: Plan | None = None,
    vjp: Vjp | None = None,
    releases: bool = False,
    walker: Walker = walk,
) -> Iterator[tuple[int, Cotangent]]:
    """Yield the position and cotangent of each source that has a path, as soon as the cotangent is complete.

    With `releases`, values of the trace that can be recomputed are released once the walk has passed them.
    """
    plan = plan or query.plan(trace)
    seeds: dict[int, list[Cotangent]] = {}
    for var, seed in zip(query.targets, query.seeds, strict=True):
        if seed is not None:
            seeds.setdefault(var, []).append(seed)
    sources = [tuple(plan.renamed.get(var, var) for var in source) for source in query.all_sources(trace)]
    positions: dict[int, list[int]] = {}
    for position, source in enumerate(sources):
        for var in source:
            positions.setdefault(var, []).append(position)
    arrived: dict[int, dict[int, Cotangent]] = {}  # for sources with several vars
    vjp = vjp or RuleVjp(trace, operations, releases)
    finish: Callable[[Cotangent], Cotangent] | None = None
    if (trace.facts.recomputed or trace.symbolic) and must_refuse(trace, plan):
        vjp, finish = hidden(vjp), refusing(trace, plan, query.seeds)
    for var, cotangent in walker(plan, seeds, vjp):
        for position in positions[var]:
            if len(sources[position]) == 1:
                yield position, cotangent if finish is None else finish(cotangent)
            else:
                arrived.setdefault(position, {})[var] = cotangent
    for position, by_var in arrived.items():
        # Newest value first: the order in which the stock tape adds them.
        total = add([by_var[var] for var in reversed(sources[position]) if var in by_var])
        yield position, total if finish is None else finish(total)


def _assigned_inside(trace: Trace, source: tuple[int, ...]) -> list[int]:
    """Return the values that inlined calls assigned to a variable."""
    facts = trace.facts
    handles = {identity_of(facts.history_of[var].handle) for var in source if var in facts.history_of}
    stand_ins = [body.handles[one] for body in facts.bodies.values() for one in handles if one in body.handles]
    histories = [facts.histories[identity_of(handle)] for handle in stand_ins if identity_of(handle) in facts.histories]
    return [var for history in histories for var in history.versions[1:]]
