"""The reverse walk. It has no policy: the plan says what to visit, and `vjp` how to differentiate one op."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from retrotape._types import Cotangent, Vjp
from retrotape.execute._plan import Plan, Step
from retrotape.tf import core


def walk(plan: Plan, seeds: Mapping[int, Sequence[Cotangent]], vjp: Vjp) -> Iterator[tuple[int, Cotangent]]:
    """Propagate the seeds backward along the plan; yield each source reached, once its cotangent is complete."""
    cotangents = {var: list(terms) for var, terms in seeds.items()}
    yield from advance(plan, plan.steps(), cotangents, vjp)
    yield from remaining(plan, cotangents)


def advance(
    plan: Plan, steps: Iterable[Step], cotangents: dict[int, list[Cotangent]], vjp: Vjp
) -> Iterator[tuple[int, Cotangent]]:
    """Take some steps of a walk; yield each source whose cotangent is complete."""
    for step in steps:
        upstream = [_take(cotangents, var) for var in step.outputs]
        yield from [
            (var, total)
            for var, total in zip(step.outputs, upstream, strict=True)
            if total is not None and var is not None and var in plan.sources
        ]
        for var, cotangent in zip(step.inputs, vjp(step.index, upstream, plan), strict=True):
            if cotangent is not None and var in plan.reached:
                cotangents.setdefault(var, []).append(cotangent)
        del upstream  # hold no other cotangent while one is yielded
        yield from ((var, _take(cotangents, var)) for var in step.whole if var in cotangents)


def remaining(plan: Plan, cotangents: dict[int, list[Cotangent]]) -> Iterator[tuple[int, Cotangent]]:
    """Yield the sources at which a walk ends."""
    yield from ((var, _take(cotangents, var)) for var in plan.sources if var in cotangents)


def _take(cotangents: dict[int, list[Cotangent]], var: int | None) -> Cotangent | None:
    terms = None if var is None else cotangents.pop(var, None)
    return None if terms is None else add(terms)


def add(terms: Sequence[Cotangent]) -> Cotangent:
    """Add cotangents, dense or sparse, in the order given."""
    return terms[0] if len(terms) == 1 else core.aggregate(terms)
