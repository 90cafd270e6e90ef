"""The reverse walk. It holds no policy: what to visit is the plan's, how to go back through an op the puller's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from retrotape.execute._plan import Plan
from retrotape.tf import core

Cotangent = Any  # a tensor, or tf.IndexedSlices
Puller = Callable[[int, list[Cotangent | None], Plan], Sequence[Cotangent | None]]


def walk(plan: Plan, seeds: dict[int, list[Cotangent]], pull: Puller) -> Iterator[tuple[int, Cotangent]]:
    """Carry the seeds back along the plan and yield the cotangent of each source that they reach, once it is whole."""
    cotangents = {var: list(terms) for var, terms in seeds.items()}
    ends = plan.ends()
    for index in plan.order():
        eqn = plan.eqns[index]
        upstream = [None if var in plan.stops else _collect(var, cotangents) for var in eqn.outputs]
        yield from [(var, total) for var, total in zip(eqn.outputs, upstream, strict=True) if plan.asks(var, total)]
        for var, cotangent in zip(eqn.inputs, pull(index, upstream, plan), strict=True):
            if cotangent is not None and var in plan.reached:
                cotangents.setdefault(var, []).append(cotangent)
        del upstream  # while a cotangent is handed out, no other should be held
        for var in eqn.inputs:
            if var in ends:
                ends[var] -= 1
                if ends[var] == 0 and var in cotangents:
                    yield var, _collect(var, cotangents)
    for var in plan.sources:
        if var in cotangents:
            yield var, _collect(var, cotangents)


def _collect(var: int, cotangents: dict[int, list[Cotangent]]) -> Cotangent | None:
    terms = cotangents.pop(var, None)
    return None if terms is None else add(terms)


def add(terms: Sequence[Cotangent]) -> Cotangent:
    """Add cotangents, dense or sparse, in the order in which they came."""
    return terms[0] if len(terms) == 1 else core.aggregate(terms)
