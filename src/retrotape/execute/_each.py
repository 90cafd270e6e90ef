"""Several targets with respect to the same sources: planned together, with values that are recomputed once for all."""

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
    """Return results of queries that differ only in targets and seeds, each as `differentiate` gives it, to the bit."""
    first = queries[0]
    wanted = [var for source in first.all_sources(trace) for var in source]
    targets = [query.targets for query in queries]
    whole, plans = make_plans(trace, targets, wanted, first.through_updates, first.since)
    if _bytes_to_recompute(trace, whole) > SEGMENT:
        # To hold them until the last walk has passed would take the memory that the tape was told to save.
        return [differentiate(trace, query, operations, plan) for query, plan in zip(queries, plans, strict=True)]
    vjp = RuleVjp(trace, operations)
    # An equation stands in this plan as often as walks pass it, so that its values are let go after the last one. What
    # it reaches beyond the plan of a walk gets a cotangent in vain, which that walk drops.
    visits = Counter(index for plan in plans for index in plan.indices)
    every = whole._replace(indices=sorted(visits.elements()))

    def shared(index: int, grads: list[Cotangent | None], plan: Plan) -> Sequence[Cotangent | None]:
        return vjp(index, grads, every)

    return [differentiate(trace, query, operations, plan, shared) for query, plan in zip(queries, plans, strict=True)]


def _bytes_to_recompute(trace: Trace, plan: Plan) -> int:
    """Return the size of the values that the walks may read and that are not in memory."""
    values, types = trace.values, trace.program.types
    read = {var for index in plan.indices for var in read_by_rule(plan.eqns[index])}
    missing = [var for var in read if var not in values or is_offloaded(values[var])]
    return sum(bytes_of(types[var]) for var in missing)
