"""A question in terms of vars, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from retrotape.execute._plan import Plan, make_plan
from retrotape.execute._pull import Puller
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
        wanted = [var for source in self.sources for var in source]
        return make_plan(recording, self.targets, wanted, self.through_updates, self.since)


def answer(
    recording: Recording,
    question: Question,
    operations: Sequence[Any] | None = None,
    plan: Plan | None = None,
) -> list[Cotangent | None]:
    """Return one cotangent for each source, None where no path leads to it."""
    plan = plan or question.plan(recording)
    seeds: dict[int, list[Cotangent]] = {}
    for var, seed in zip(question.targets, question.seeds, strict=True):
        if seed is not None:
            seeds.setdefault(var, []).append(seed)
    arrived = walk(plan, seeds, Puller(recording, operations))
    return [_of_source(arrived, source) for source in question.sources]


def _of_source(arrived: dict[int, Cotangent], source: tuple[int, ...]) -> Cotangent | None:
    # The newest value first: that is the order in which the stock tape meets the reads.
    terms = [arrived[var] for var in reversed(source) if var in arrived]
    return add(terms) if terms else None
