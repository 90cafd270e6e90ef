"""The reverse walk. It holds no policy: what to visit is the plan's, how to go back through an op the puller's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrotape import _tf
from retrotape.execute._plan import Plan

Cotangent = Any  # a tensor, or tf.IndexedSlices
Puller = Callable[[int, list[Cotangent | None], Plan], Sequence[Cotangent | None]]


def walk(plan: Plan, seeds: dict[int, list[Cotangent]], pull: Puller) -> dict[int, Cotangent]:
    """Carry the seeds back along the plan and return the cotangent of each source that they reach."""
    cotangents = {var: list(terms) for var, terms in seeds.items()}
    arrived: dict[int, Cotangent] = {}
    for index in plan.order():
        eqn = plan.eqns[index]
        upstream = [_collect(var, cotangents, plan, arrived) for var in eqn.outputs]
        if all(cotangent is None for cotangent in upstream):
            continue
        for var, cotangent in zip(eqn.inputs, pull(index, upstream, plan), strict=True):
            if cotangent is not None and var in plan.reached:
                cotangents.setdefault(var, []).append(cotangent)
    for var in plan.sources:
        if var in cotangents:
            arrived[var] = add(cotangents[var])
    return arrived


def _collect(
    var: int, cotangents: dict[int, list[Cotangent]], plan: Plan, arrived: dict[int, Cotangent]
) -> Cotangent | None:
    terms = cotangents.pop(var, None)
    if terms is None:
        return None
    total = add(terms)
    if var in plan.sources:
        arrived[var] = total
    return None if var in plan.stops else total


def add(terms: Sequence[Cotangent]) -> Cotangent:
    """Add cotangents, dense or sparse, in the order in which they came."""
    return terms[0] if len(terms) == 1 else _tf.aggregate(terms)
