"""Several targets by the same sources: planned together, with values that are computed again once for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from retrotape.execute._plan import Plan, make_plans
from retrotape.execute._pull import Puller
from retrotape.execute._question import Question, answer
from retrotape.ir import bytes_of
from retrotape.record import SEGMENT, Recording, is_away, looked_at

Cotangent = Any


def answer_each(
    recording: Recording, questions: Sequence[Question], operations: Sequence[Any] | None = None
) -> list[list[Cotangent | None]]:
    """Answer questions that differ only in their targets and seeds; each answer is what `answer` gives, to the bit."""
    first = questions[0]
    wanted = [var for source in first.all_sources(recording) for var in source]
    targets = [question.targets for question in questions]
    whole, plans = make_plans(recording, targets, wanted, first.through_updates, first.since)
    if _bytes_to_compute(recording, whole) > SEGMENT:
        # To hold them until the last walk has passed would take the memory that the tape was told to save.
        return [answer(recording, asked, operations, plan) for asked, plan in zip(questions, plans, strict=True)]
    pull = Puller(recording, operations)
    # An equation stands in this plan as often as walks pass it, so that its values are let go after the last one. What
    # it reaches beyond the plan of a walk gets a cotangent in vain, which that walk drops.
    visits = Counter(index for plan in plans for index in plan.indices)
    every = whole._replace(indices=sorted(visits.elements()))

    def shared(index: int, grads: list[Cotangent | None], plan: Plan) -> Sequence[Cotangent | None]:
        return pull(index, grads, every)

    return [answer(recording, asked, operations, plan, shared) for asked, plan in zip(questions, plans, strict=True)]


def _bytes_to_compute(recording: Recording, plan: Plan) -> int:
    """Return the size of the values that the walks may look at and that are not in memory."""
    values = recording.values
    looks = {var for index in plan.indices for var in looked_at(plan.eqns[index])}
    away = [var for var in looks if var not in values or is_away(values[var])]
    return sum(bytes_of(recording.builder.types[var]) for var in away)
