"""Gradients of several targets with respect to the same sources: planned together, sharing recomputed values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from retrotape._types import Cotangent
from retrotape.execute._plan import Plan, make_plans
from retrotape.execute._query import Query, differentiate
from retrotape.execute._vjp import RuleVjp
from retrotape.ir import bytes_of
from retrotape.record import SEGMENT, Trace, is_offloaded, read_by_rule


def differentiate_each(
    trace: Trace, queries: Sequence[Query], operations: Sequence[Any] | None = None
) -> list[list[Cotangent | None]]:
    """Return the results of queries that differ only in targets and seeds, bit-identical to `differentiate` on each."""
    first = queries[0]
    wanted = [var for source in first.all_sources(trace) for var in source]
    targets = [query.targets for query in queries]
    whole, plans = make_plans(trace, targets, wanted, first.through_updates, first.since)
    if _bytes_to_recompute(trace, whole) > SEGMENT:
        # Holding them until the last walk is done would use the memory that `keep` is meant to save.
        return [differentiate(trace, query, operations, plan) for query, plan in zip(queries, plans, strict=True)]
    vjp = RuleVjp(trace, operations)
    # An equation occurs in this plan once per walk that visits it, so its values are released after the last one.
    # Inputs outside the plan of a particular walk get a cotangent too, which that walk drops.
    visits = Counter(index for plan in plans for index in plan.indices)
    every = whole._replace(indices=sorted(visits.elements()))

    def shared(index: int, grads: list[Cotangent | None], plan: Plan) -> Sequence[Cotangent | None]:
        return vjp(index, grads, every)

    return [differentiate(trace, query, operations, plan, shared) for query, plan in zip(queries, plans, strict=True)]


def _bytes_to_recompute(trace: Trace, plan: Plan) -> int:
    """Return the size in bytes of the values that the walks may read and that are not in memory."""
    values, types = trace.values, trace.program.types
    read = {var for index in plan.indices for var in read_by_rule(plan.eqns[index])}
    missing = [var for var in read if var not in values or is_offloaded(values[var])]
    return sum(bytes_of(types[var]) for var in missing)
