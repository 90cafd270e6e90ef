"""The reverse walk. It holds no policy: what to visit is in the plan, how to differentiate one op in `vjp`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from retrotape._types import Cotangent, Vjp
from retrotape.execute._plan import Plan
from retrotape.tf import core


def walk(plan: Plan, seeds: Mapping[int, Sequence[Cotangent]], vjp: Vjp) -> Iterator[tuple[int, Cotangent]]:
    """Carry the seeds back along the plan; yield each source that they reach, with its cotangent once it is whole."""
    cotangents = {var: list(terms) for var, terms in seeds.items()}
    for step in plan.steps():
        upstream = [_take(cotangents, var) for var in step.outputs]
        yield from [
            (var, total)
            for var, total in zip(step.outputs, upstream, strict=True)
            if total is not None and var is not None and var in plan.sources
        ]
        for var, cotangent in zip(step.inputs, vjp(step.index, upstream, plan), strict=True):
            if cotangent is not None and var in plan.reached:
                cotangents.setdefault(var, []).append(cotangent)
        del upstream  # while a cotangent is handed out, no other should be held
        yield from ((var, _take(cotangents, var)) for var in step.whole if var in cotangents)
    yield from ((var, _take(cotangents, var)) for var in plan.sources if var in cotangents)


def _take(cotangents: dict[int, list[Cotangent]], var: int | None) -> Cotangent | None:
    terms = None if var is None else cotangents.pop(var, None)
    return None if terms is None else add(terms)


def add(terms: Sequence[Cotangent]) -> Cotangent:
    """Add cotangents, dense or sparse, in the order in which they came."""
    return terms[0] if len(terms) == 1 else core.aggregate(terms)
