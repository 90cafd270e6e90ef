"""A question in terms of vars, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from retrotape.execute._beside_stock import hidden, must_refuse, refusing
from retrotape.execute._plan import Plan, make_plan
from retrotape.execute._pull import Puller
from retrotape.execute._walk import Puller as Pull
from retrotape.execute._walk import add, walk
from retrotape.record import Recording

Tensor = Any
Cotangent = Any


class Question(NamedTuple):
    """The gradients of the targets, weighted by the seeds and summed, by each of the sources.

    A source is several vars where it is a variable that was assigned: every value that it had counts.
    """

    targets: tuple[int, ...]
    seeds: tuple[Tensor | None, ...]
    sources: tuple[tuple[int, ...], ...]
    through_updates: bool
    since: int | None = None

    def plan(self, recording: Recording) -> Plan:
        """Return the equations that the question concerns."""
        wanted = [var for source in self.all_sources(recording) for var in source]
        return make_plan(recording, self.targets, wanted, self.through_updates, self.since)

    def all_sources(self, recording: Recording) -> list[tuple[int, ...]]:
        """Return the vars of each source; of a variable, also the values that calls which were looked into gave it.

        Where assignments end paths, every read of a variable counts, and so do those that follow one inside of a call.
        """
        if self.through_updates or not recording.inlined:
            return list(self.sources)
        return [(*source, *_given_inside(recording, source)) for source in self.sources]


def answer(
    recording: Recording,
    question: Question,
    operations: Sequence[Any] | None = None,
    plan: Plan | None = None,
    pull: Pull | None = None,
) -> list[Cotangent | None]:
    """Return one cotangent for each source, None where no path leads to it."""
    found: list[Cotangent | None] = [None] * len(question.sources)
    for position, cotangent in stream(recording, question, operations, plan, pull):
        found[position] = cotangent
    return found


def stream(
    recording: Recording,
    question: Question,
    operations: Sequence[Any] | None = None,
    plan: Plan | None = None,
    pull: Pull | None = None,
) -> Iterator[tuple[int, Cotangent]]:
    """Yield the position and the cotangent of each source to which a path leads, as soon as it is whole."""
    plan = plan or question.plan(recording)
    seeds: dict[int, list[Cotangent]] = {}
    for var, seed in zip(question.targets, question.seeds, strict=True):
        if seed is not None:
            seeds.setdefault(var, []).append(seed)
    renamed = plan.view.renamed
    sources = [tuple(renamed.get(var, var) for var in source) for source in question.all_sources(recording)]
    positions: dict[int, list[int]] = {}
    for position, source in enumerate(sources):
        for var in source:
            positions.setdefault(var, []).append(position)
    arrived: dict[int, dict[int, Cotangent]] = {}  # of sources that are several vars
    pull = pull or Puller(recording, operations)
    told: Callable[[Cotangent], Cotangent] = _as_it_is
    if must_refuse(recording, plan):
        pull, told = hidden(pull), refusing(recording, plan, question.seeds)
    for var, cotangent in walk(plan, seeds, pull):
        for position in positions[var]:
            if len(sources[position]) == 1:
                yield position, told(cotangent)
            else:
                arrived.setdefault(position, {})[var] = cotangent
    for position, by_var in arrived.items():
        # The newest value first: that is the order in which the stock tape meets the reads.
        yield position, told(add([by_var[var] for var in reversed(sources[position]) if var in by_var]))


def _given_inside(recording: Recording, source: tuple[int, ...]) -> list[int]:
    """Return the values that calls, whose ops were run again, gave a variable."""
    handles = {recording.cell_of[var].handle._id for var in source if var in recording.cell_of}
    stand_ins = [body.handles[one] for body in recording.inlined.values() for one in handles if one in body.handles]
    cells = [recording.cells[handle._id] for handle in stand_ins if handle._id in recording.cells]
    return [var for cell in cells for var in cell.versions[1:]]


def _as_it_is(cotangent: Cotangent) -> Cotangent:
    return cotangent
