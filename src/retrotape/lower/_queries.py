"""Run a query by a compiled function; compile it when it comes again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from retrotape._types import Cotangent, Tensor
from retrotape.lower._compare import check_same
from retrotape.lower._feeds import Feeds
from retrotape.lower._inside import FIRST, compiled_inside, is_inside
from retrotape.lower._keys import check_unchanged, described, roles
from retrotape.lower._lower import lower
from retrotape.lower._observed import Computation, NotCompilableError, Observation
from retrotape.lower._span import ATTEMPTS, VARIANTS
from retrotape.lower._splice import with_recomputed
from retrotape.lower._structures import QueryState, Structure, cache
from retrotape.record import Trace, current_stack, settings
from retrotape.tf import core, threads
from retrotape.tf.core import tf

RECORDED = "a tape, or a forward accumulator, records the query itself"
Compute = Callable[[], list[Cotangent | None]]


def compiled(trace: Trace, kind: Hashable, inputs: Sequence[Tensor], compute: Compute) -> list[Cotangent | None]:
    """Return what `compute` returns, by a compiled function where there is one.

    Args:
      trace: The trace whose values it reads.
      kind: What it computes, given the trace.
      inputs: What it reads besides.
      compute: Computes it op by op.
    """
    reason = _why_not(trace)
    if reason is RECORDED and is_inside(trace):
        return compiled_inside(trace, kind, inputs, compute)
    known = _find(trace, kind, inputs, reason)
    if known is None:
        return compute()
    query, structure = known
    found = _run(query, trace, inputs)
    if found is not None:
        trace.not_compiled = None
        return found
    if query.refused is not None:
        trace.not_compiled = query.refused
        trace.on_rules()
        return compute()
    found, computation = observe(query, trace, inputs, compute)
    if computation is not None:
        found = _compile(query, trace, inputs, computation, found)
    if trace.template is not None:
        trace.template.keep_only(structure.needs())
    return found


def compiled_part(
    trace: Trace, structure: Structure | None, kind: Hashable, inputs: Sequence[Tensor], compute: Compute
) -> list[Cotangent | None]:
    """Do the same for a part of a walk; the function recomputes values that the trace does not keep."""
    if structure is None or structure.refused is not None:
        trace.not_compiled = FIRST if structure is None else structure.refused
        return compute()
    part = structure.part((kind, roles(trace, inputs)))
    found = _run(part, trace, inputs)
    if found is not None:
        return found
    if part.refused is not None:
        trace.not_compiled = part.refused
        return compute()
    found, computation = observe(part, trace, inputs, compute)
    return found if computation is None else _compile(part, trace, inputs, computation, found, recompute=True)


def find_query(trace: Trace, kind: Hashable, inputs: Sequence[Tensor]) -> tuple[QueryState, Structure] | None:
    """Return what is known about a query; None if it cannot be compiled now, or is not worth it yet."""
    return _find(trace, kind, inputs, _why_not(trace))


def _find(
    trace: Trace, kind: Hashable, inputs: Sequence[Tensor], reason: str | None
) -> tuple[QueryState, Structure] | None:
    structure = cache.structure_of(trace) if reason is None else None
    if structure is None or structure.refused is not None:
        trace.not_compiled = reason or (FIRST if structure is None else structure.refused)
        if trace.not_compiled is not FIRST:
            trace.on_rules()
        return None
    query = structure.query((kind, roles(trace, inputs)))
    if query is None:
        trace.not_compiled = FIRST
        return None
    return query, structure


def observe(
    query: QueryState, trace: Trace, inputs: Sequence[Tensor], compute: Compute
) -> tuple[list[Cotangent | None], Computation | None]:
    """Compute op by op; return the results, and what ran if it ran twice, as data."""
    observation, before = Observation(trace, inputs), described(trace)
    found = observation.run(compute)
    trace.not_compiled = FIRST
    try:
        computation = observation.computation(found)
        check_unchanged(trace, before)
        if computation == query.last or settings.mode == "always":
            if len(query.variants) >= VARIANTS:
                raise NotCompilableError("gradient functions read values in Python that change each time")
            return found, computation
        query.last, query.attempts = computation, query.attempts + 1
        if query.attempts >= ATTEMPTS:
            raise NotCompilableError("gradient functions run other ops, or use other constants, each time")
    except NotCompilableError as error:
        query.refuse(str(error))
        trace.not_compiled = query.refused
    return found, None


def _compile(
    query: QueryState,
    trace: Trace,
    inputs: Sequence[Tensor],
    computation: Computation,
    found: list[Cotangent | None],
    recompute: bool = False,
) -> list[Cotangent | None]:
    """Add a compiled function, if it returns what was found op by op."""
    value_of = Feeds(trace)
    if trace.guard is not None:  # the function is used on this trace only, whose values do not change
        computation = computation._replace(read=())
    specialize = not query.variants
    if recompute:
        computation = with_recomputed(computation, trace)
        specialize = False  # a power in the forward pass is recomputed as it was
    try:
        lowered = lower(computation, value_of, specialize, trace.program.eqns, in_order=recompute)
        again = lowered(inputs, value_of.all(lowered.feeds))
        for one, other in zip(found, again, strict=True):
            check_same(one, other)
    except (NotCompilableError, tf.errors.OpError) as error:
        query.refuse(error.message if isinstance(error, tf.errors.OpError) else str(error))
        trace.not_compiled = query.refused
        return found
    query.add(lowered)
    return again if settings.mode == "always" else found


def _why_not(trace: Trace) -> str | None:
    """Return why no query on a trace can be compiled now; None if it can be."""
    if threads.gone:
        return threads.GONE
    if settings.mode == "never":
        return "compilation is off: `rt.config(compile=True)` switches it on"
    if trace.symbolic or not tf.executing_eagerly():
        return "inside a tf.function, the gradient is part of the function's graph"
    if current_stack().observed() or core.stock_tape_listens():
        return RECORDED
    if trace.drops_values:
        return f"keep={trace.keep!r}: values are recomputed part by part"
    return None


def _run(query: QueryState, trace: Trace, inputs: Sequence[Tensor]) -> list[Cotangent | None] | None:
    """Return the results by a compiled function; None if there is none for the values that Python would read."""
    if not query.variants:
        return None
    value_of = Feeds(trace)
    for lowered in query.variants:
        if lowered.fits(value_of):
            try:
                return lowered(inputs, value_of.all(lowered.feeds))
            except tf.errors.OpError:  # an op that checks its inputs: computed op by op, the error says where
                return None
    return None
