"""Walk back through a tape in segments part by part, each part by a compiled function that recomputes what it needs.

A function for the whole walk would hold what all parts recompute. One for each part holds what that part recomputes,
and what the tape has kept for it can be released before the next one begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from retrotape._types import Cotangent, Tensor
from retrotape.execute import Plan, Query, RuleVjp, Step, advance, differentiate, remaining
from retrotape.ir import Program, bytes_of, slice_to
from retrotape.lower._queries import compiled_part
from retrotape.lower._structures import cache
from retrotape.record import Kind, Trace, current_stack, read_by_rule, settings, traits
from retrotape.tf import core
from retrotape.tf.core import tf


class Part(NamedTuple):
    """Consecutive steps of a walk, and what goes in and out, in a fixed order.

    Attributes:
      steps: The steps.
      begin: The number of the first one.
      takes: The vars whose cotangents are complete in this part.
      sources: The sources among them.
      leaves: The vars to whose cotangents it adds terms, with how many at most.
    """

    steps: list[Step]
    begin: int
    takes: list[int]
    sources: list[int]
    leaves: list[tuple[int, int]]


def differentiate_in_parts(trace: Trace, query: Query) -> list[Cotangent | None] | None:
    """Return one cotangent for each source, computed part by part; None if the trace or the query is not of that kind.

    No other query is expected: values that can be recomputed are released meanwhile.
    """
    facts = trace.facts
    if len(trace.segment_starts()) < 2 or settings.mode == "never" or trace.symbolic or not tf.executing_eagerly():
        return None
    if query.through_updates or trace.base is not None or facts.bodies or facts.recomputed:
        return None
    if current_stack().observed() or core.stock_tape_listens():
        return None
    plan = query.plan(trace)
    parts = parts_of(trace, plan)
    if parts is None:
        return None
    trace.not_compiled = None
    walk = PartsWalk(trace, query)
    return differentiate(trace, query, plan=plan, walker=lambda _, seeds, __: walk.walk(plan, parts, seeds))


def parts_of(trace: Trace, plan: Plan) -> list[Part] | None:
    """Return the steps of a plan by segment; None if they are so intertwined that a part would need too much memory."""
    parts: list[Part] = []
    begin, limit = 0, trace.segment_size()
    for steps in _by_segment(trace, plan):
        if limit is None or _bytes_read(plan, trace.program, steps) > limit:
            return None
        takes = {var: None for step in steps for var in (*step.outputs, *step.whole) if var is not None}
        added = Counter(var for step in steps for var in step.inputs if var in plan.reached and var not in takes)
        sources = [var for var in takes if var in plan.sources]
        parts.append(Part(steps, begin, list(takes), sources, list(added.items())))
        begin += len(steps)
    return parts


def _distinct(terms: list[Cotangent]) -> list[Tensor]:
    """Return cotangents as tensors none of which occurs twice: those that a function has returned do not."""
    seen: set[int] = set()
    found = []
    for term in terms:
        is_new = id(term) not in seen
        seen.add(id(term))
        found.append(term if is_new or isinstance(term, tf.IndexedSlices) else tf.identity(term))
    return found


def _bytes_read(plan: Plan, program: Program, steps: Sequence[Step]) -> int:
    """Return the size in bytes of the values that rules may read, without those of variables and other leaves."""
    read = {var for step in steps for var in read_by_rule(plan.eqns[step.index])}
    makers = {var: program.producers[var] for var in read if program.producers[var] >= 0}
    return sum(
        bytes_of(program.types[var])
        for var, index in makers.items()
        if traits(program.eqns[index].op).kind is Kind.PLAIN
    )


def _by_segment(trace: Trace, plan: Plan) -> Iterator[list[Step]]:
    """Yield the steps up to the first one in an earlier segment, and so on.

    A few steps of later segments may be left then, for instance where variables were read.
    """
    steps: list[Step] = []
    starts = trace.segment_starts()
    first = len(starts)
    for step in plan.steps():
        segment = bisect_right(starts, step.index)
        if segment < first and steps:
            yield steps
            steps = []
        first = min(first, segment)
        steps.append(step)
    if steps:
        yield steps


class PartsWalk:
    """A reverse walk part by part; see `execute.walk`, which it takes the place of.

    Args:
      trace: The trace, which keeps values in segments.
      query: The query.
    """

    def __init__(self, trace: Trace, query: Query) -> None:
        self._trace, self._releases = trace, trace.may_release()
        self._key = query.targets, query.sources, query.through_updates, query.since
        self._structure = cache.structure_of(trace)  # once, for that counts how often it came
        self._vjp = RuleVjp(trace)

    def walk(self, plan: Plan, parts: Sequence[Part], seeds: Mapping[int, Sequence[Cotangent]]) -> Iterator:
        """Propagate the seeds backward; yield each source reached, once its cotangent is complete."""
        cotangents = {var: list(terms) for var, terms in seeds.items()}
        last = self._last_uses(plan, parts) if self._releases else {}
        for number, part in enumerate(parts):
            given = {var: cotangents.pop(var) for var in part.takes if var in cotangents}
            totals, left = self._run(plan, part, given)
            del given
            for var, terms in left:
                if terms:
                    cotangents.setdefault(var, []).extend(terms)
            for var in last.get(number, ()):
                self._trace.release(var)
            yield from totals
            del totals, left
        yield from remaining(plan, cotangents)

    def _last_uses(self, plan: Plan, parts: Sequence[Part]) -> dict[int, list[int]]:
        """Return, by part, the kept values that no later part needs."""
        last: dict[int, int] = {}
        program, kept = self._trace.program, self._trace.values
        backward = self._trace.facts.backward_functions
        for number, part in enumerate(parts):
            read = {var for step in part.steps for var in read_by_rule(plan.eqns[step.index])}
            for step in part.steps:
                if step.index in backward:
                    read.update(backward[step.index].captures)
            again = {var for index in slice_to(program, read, kept) for var in program.eqns[index].inputs}
            last.update((var, number) for var in read | again if var in kept)
        found: dict[int, list[int]] = {}
        for var, number in last.items():
            found.setdefault(number, []).append(var)
        return found

    def _run(
        self, plan: Plan, part: Part, given: dict[int, list[Cotangent]]
    ) -> tuple[list[tuple[int, Cotangent]], list[tuple[int, list[Cotangent]]]]:
        """Run a part; return the sources that are complete, and the terms that it adds to other cotangents."""
        counts = tuple([(var, len(terms)) for var, terms in given.items()])
        inputs = _distinct([term for terms in given.values() for term in terms])

        def compute() -> list[Cotangent | None]:
            terms = iter(inputs)
            cotangents = {var: [next(terms) for _ in range(count)] for var, count in counts}
            totals = dict(advance(plan, part.steps, cotangents, self._vjp))
            found = [totals.pop(var, None) for var in part.sources]
            for var, most in part.leaves:
                own = cotangents.pop(var, [])
                found += [*own, *[None] * (most - len(own))]
            assert not totals
            assert not cotangents
            return found

        if all(type(term) is not tf.IndexedSlices for term in inputs):
            kind: Hashable = "part", self._key, part.begin, len(part.steps), counts
            known = len(self._trace.tensors.by_identity)
            found = compiled_part(self._trace, self._structure, kind, inputs, compute)
            self._vjp.skip((step.index for step in part.steps), plan, known)
        else:
            found = compute()
        results = iter(found)
        totals = [(var, total) for var in part.sources if (total := next(results)) is not None]
        left = [(var, [term for _ in range(most) if (term := next(results)) is not None]) for var, most in part.leaves]
        return totals, left
