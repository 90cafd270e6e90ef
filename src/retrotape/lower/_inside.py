"""Queries inside an open block, whose ops are recorded: one function computes what they return and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from retrotape._types import Cotangent, Tensor
from retrotape.lower._feeds import Feeds
from retrotape.lower._keys import check_rules, check_unchanged, described, roles, tensors_in
from retrotape.lower._observed import NotCompilableError, Observation
from retrotape.lower._span import ATTEMPTS, Extent, Span, constants_in, lower_span, own_vars
from retrotape.record import Position, Recorder, Template, Trace, current_stack, here, settings
from retrotape.tf.core import tf

MOST = 1024  # queries inside one block that are compiled
Compute = Callable[[], list[Cotangent | None]]

FIRST = "it was seen for the first time; it is compiled when it comes again"


def is_inside(trace: Trace) -> bool:
    """Return whether the ops of a query would be recorded on the trace that it is about, and nowhere else."""
    if settings.mode == "never" or trace.symbolic or trace.drops_values or not tf.executing_eagerly():
        return False
    return current_stack().records_only(trace)


def compiled_inside(trace: Trace, kind: Hashable, inputs: Sequence[Tensor], compute: Compute) -> list[Cotangent | None]:
    """Return what `compute` returns, by a compiled function if the template has these ops next.

    The ops do not run then: the trace goes on in its template after them.
    """
    assert isinstance(trace, Recorder)
    current_stack().flush()  # what was done to the seeds
    trace.not_compiled = FIRST
    known = trace.position()
    if known is None:  # the first run of the block, or one that differs from all earlier ones
        return compute()
    template, position = known
    try:
        functions = described(trace)
        key = kind, roles(trace, inputs)
        found = _find(trace, key, functions, inputs)
        if found is not None:
            return found
        span = template.spans.get((position.eqns, key)) or Span()
        if span.refused is None and len(template.spans) < MOST:
            return _observe(trace, template, (position, key, functions), inputs, compute)
        trace.not_compiled = span.refused or FIRST
    except NotCompilableError as error:  # because of a backward function
        trace.not_compiled = str(error)
        span = Span()
    if not span.is_empty:
        trace.on_rules()
    return compute()


def run_inside(trace: Recorder, kind: Hashable) -> list[Cotangent | None] | None:
    """Return the results of a query by a compiled function, and go on after its ops; None if there is none.

    It has no inputs, and what was recorded so far is flushed.
    """
    try:
        return _find(trace, (kind, ()), described(trace), ())
    except NotCompilableError:  # because of a backward function
        return None


def _find(
    trace: Recorder, key: Hashable, functions: Hashable, inputs: Sequence[Tensor]
) -> list[Cotangent | None] | None:
    known = trace.position()
    if known is None:
        return None
    for template in trace.templates():
        span = template.spans.get((known[1].eqns, key))
        if span is not None and span.variants and span.matches(known[1], here(1), functions):
            return _run(trace, template, span, inputs) if span.has_all(template.taken()) else None
    return None


def _run(trace: Recorder, template: Template, span: Span, inputs: Sequence[Tensor]) -> list[Cotangent | None] | None:
    value_of = Feeds(trace)
    for variant in span.variants:
        if variant.fits(trace, value_of):
            try:
                found, passed = variant(inputs, value_of)
            except tf.errors.OpError:  # computed op by op, the error says where
                return None
            trace.skip(template, passed)
            current_stack().number += variant.extent.events
            trace.not_compiled = None
            return found
    return None


def _observe(
    trace: Recorder,
    template: Template,
    asked: tuple[Position, Hashable, Hashable],
    inputs: Sequence[Tensor],
    compute: Compute,
) -> list[Cotangent | None]:
    """Compute op by op, and compile it if it did the same before."""
    stack, place, (before, key, functions) = current_stack(), here(1), asked
    if template.strayed.get((before.eqns, key), 0) >= ATTEMPTS:
        return compute()
    number, observation = stack.number, Observation(trace, inputs, before.size)
    found = observation.run(compute)
    stack.flush()
    known = trace.position()
    if known is None or known[1].eqns < before.eqns:  # other ops ran than those of any template
        observation.end()
        template.strayed[before.eqns, key] = template.strayed.get((before.eqns, key), 0) + 1
        return found
    template, after = known
    span = template.spans.setdefault((before.eqns, key), Span())
    try:
        if tensors_in(functions):
            raise NotCompilableError("a backward function refers to a tensor that is not on the tape")
        check_rules(template.eqns[: before.eqns])
        computation = observation.computation(found, template.fixed)
        span.is_empty = before.eqns == after.eqns
        if span.is_empty:
            raise NotCompilableError("there is nothing to compute")
        on_trace = ((own, trace.tensors.get(one)) for one, own in observation.var_by_identity.items())
        pairs = [(own, var) for own, var in on_trace if var is not None]
        own = own_vars(template, computation, before, after, pairs)
        check_unchanged(trace, functions)
        extent = Extent(*before[:3], place, functions, stack.number - number, after[:2], own)
        template.fixed.update(constants_in(template, extent, computation))
        if span.refused is None and span.learn(extent, computation):
            with stack.aside():
                span.add(lower_span(trace, template, span, inputs, found, observation.assumed))
    except (NotCompilableError, tf.errors.OpError) as error:
        observation.end()
        span.refuse(error.message if isinstance(error, tf.errors.OpError) else str(error))
        trace.not_compiled = span.refused
        if not span.is_empty:
            trace.on_rules()
    template.choose_kept()
    return found
