"""Translates arguments of users to requests in terms of vars, and solves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape._types import Nest
from retrotape.errors import NotDifferentiableError, NotRecordedError, ReplicaError, TapeUseError
from retrotape.execute import Query, Request, Values, add, differentiate, make_plan
from retrotape.lower import differentiate_in_parts
from retrotape.query._base import Results
from retrotape.record import GraphSession, Session, Trace, function_traits
from retrotape.tf.core import tf
from retrotape.tf.nests import (
    DIFFERENTIABLE,
    VARIABLES,
    Parts,
    describe,
    has_derivative,
    is_variable,
    seeds_for,
    take_apart,
    zeros_like,
)
from retrotape.tf.replicas import differs_by_replica
from retrotape.tf.version import Version
from retrotape.transform import check_mirrored

_LOCAL = "Query its components, one for each replica: `strategy.experimental_local_results(variable)`."


def make_request(
    session: Session,
    results: Results,
    target: Nest,
    sources: Parts,
    output_gradients: Any = None,
    through_updates: bool = False,
    since: int | None = None,
    ones: bool = True,
    leave_out: bool = False,
) -> Request:
    """Return the request for the gradients of `target` with respect to `sources`.

    A target with a dtype that has no derivative raises, or with `leave_out` is listed in `left_out`: the caller has to
    warn of it.
    """
    parts, given = sources.flat, take_apart(target, "target").flat
    _look_inside(session, results, parts, through_updates, since)
    if sources.owners:
        session.trace.owners.update(sources.owners)
    targets = [part for part in given if part.dtype.base_dtype in DIFFERENTIABLE]
    left_out = [] if len(targets) == len(given) else _without_derivative(given)
    if left_out and not leave_out:
        raise NotDifferentiableError(describe(left_out[0]), left_out[0].dtype.name)
    stand_ins: dict[int, int] = {}
    given_sources = set(map(id, parts))
    for part in targets:  # a target that is also a source counts as used
        is_source = id(part) in given_sources
        if not isinstance(part, VARIABLES):
            if is_source:
                session.var_of(part)
        elif session.history(part) is None and (is_source or session.watches(part)):
            stand_ins[id(part)] = session.stand_in(part)
    found = tuple(stand_ins[id(part)] if id(part) in stand_ins else _target(session, results, part) for part in targets)
    tensors = [part for part in targets if not isinstance(part, VARIABLES)]
    seeds = tuple(seeds_for(given, output_gradients)) if ones else ()
    return Request(
        found,
        seeds,
        tuple(_source(session, part, through_updates, since, stand_ins) for part in parts),
        tuple(through_updates or isinstance(part, Version) for part in parts),
        since,
        tuple(request for request in map(results.request_of, tensors) if request is not None),
        ()
        if session.outer is None
        else tuple(_source(session.outer, part, through_updates, since, {}) for part in parts),
        tuple(left_out),
    )


def _look_inside(
    session: Session, results: Results, sources: Sequence[Any], through_updates: bool, since: int | None
) -> None:
    """Let this query and later ones see the ops inside the calls that assigned a source.

    A call returns what it may have computed from that value, and so does each walk through it: a result of an earlier
    query, which is differentiated now, has to be recorded again.
    """
    trace = session.trace
    wanted = [
        part for part in sources if isinstance(part, Version) or (through_updates and isinstance(part, VARIABLES))
    ]
    if not wanted or not trace.facts.calls:
        return
    assigned = {var for part in wanted for var in _source(session, part, through_updates, since, {})}
    new = {
        index
        for index, call in trace.facts.calls.items()
        if not assigned.isdisjoint(trace.program.eqns[index].outputs) and function_traits(call.function).deterministic
    }
    if not new <= trace.inlined:
        trace.inlined |= new
        results.forget_recorded()


def _without_derivative(parts: Sequence[Any]) -> list[Any]:
    found = [part for part in parts if not has_derivative(part)]
    for part in found:
        if part.dtype.base_dtype in (tf.resource, tf.variant):  # its contents may have one
            raise NotDifferentiableError(describe(part), part.dtype.name)
    return found


def _target(session: Session, results: Results, part: Any) -> int:
    if isinstance(part, VARIABLES):
        history = session.history(part)
        if history is None:
            raise NotRecordedError(describe(part), "it was not read while recording", "Read it inside the block.")
        return history.current
    var = results.var(part, session)
    if var is None:
        var = session.find(part)
    if var is None:
        reason = session.why_absent(part)
        if reason is not None:
            raise NotRecordedError(describe(part), *reason)
        var = session.var_of(part)  # made in the block, but by no op: a constant without a path
    return var


def _source(
    session: Session, part: Any, through_updates: bool, since: int | None, stand_ins: dict[int, int]
) -> tuple[int, ...]:
    if isinstance(part, Version):
        if part.token is not session.token:
            raise TapeUseError(
                f"{part!r} belongs to another tape, or to what this one had recorded before it was reset. "
                "Take it from the tape that you query: `tape.at(variable, k)`."
            )
        histories = session.histories_of(part.variable)  # version by version the same, see `versions_of`
        return tuple(history.versions[part.number] for history in histories if part.number < len(history.versions))
    if isinstance(part, VARIABLES):
        histories = session.source_histories(part)
        if not histories:
            return (stand_ins[id(part)],) if id(part) in stand_ins else ()
        if len(histories) > 1 and differs_by_replica(part):
            raise ReplicaError(f"The source {describe(part)} has a value of its own in each replica", _LOCAL)
        if through_updates:
            return tuple(history.number(since or 0) for history in histories)
        return tuple(version for history in histories for version in history.versions)
    var = session.find(part)
    return () if var is None else (var,)


def versions_of(session: Session, variable: Any) -> tuple[Version, ...]:
    """Return the values that a variable had, or raise if it had none."""
    history = session.history(variable) if is_variable(variable) else None
    if history is None:
        if not is_variable(variable):
            raise TypeError(f"Only a variable has versions, got {type(variable).__name__}; a tensor has one value.")
        reason = "no op read or assigned it while recording"
        raise NotRecordedError(describe(variable), reason, "Use it inside the block.", role="variable")
    if len(session.histories_of(variable)) > 1:
        if differs_by_replica(variable):
            raise ReplicaError(f"{describe(variable)} has values of its own in each replica", _LOCAL)
        check_mirrored(session.trace, variable)
    load = Values(session.trace)
    count = len(history.versions)
    token = session.token
    return tuple(Version(variable, number, count, var, token, load) for number, var in enumerate(history.versions))


def solve(session: Session, request: Request, *, releases: bool = False) -> list[Any]:
    """Return one gradient for each source, None where there is no path.

    Args:
      session: The session to query.
      request: What is requested.
      releases: Whether no other query is expected, so that a tape in segments may release values meanwhile.
    """
    found: list[Any] = [None] * len(request.sources)
    queries = request.queries()
    for positions, query in queries:
        only = releases and len(queries) == 1 and session.trace.keep == "segments"
        found_in_parts = differentiate_in_parts(session.trace, query) if only else None
        grads = found_in_parts or differentiate(session.trace, query, session.operations, releases=only)
        for position, grad in zip(positions, grads, strict=True):
            found[position] = grad
    return (
        _with_outside(session, request, found) if isinstance(session, GraphSession) and any(request.outside) else found
    )


def _with_outside(session: GraphSession, request: Request, found: list[Any]) -> list[Any]:
    """Follow paths out of the graph, through tensors that the same tape recorded earlier in eager code."""
    refuse_outside(request, any(request.through), "through updates")
    assert session.outer is not None
    crossings = session.crossings()
    inner = Query(request.targets, request.flowing(), tuple((here,) for here, _ in crossings), False)
    flowing = [
        (there, grad)
        for (_, there), grad in zip(crossings, differentiate(session.trace, inner, session.operations), strict=True)
        if grad is not None
    ]
    outer = Query(tuple(var for var, _ in flowing), tuple(grad for _, grad in flowing), request.outside, False)
    rest = differentiate(session.outer.trace, outer)
    histories = session.outer.trace.facts.history_of
    return [
        # The gradient of a tensor inside the graph is included in what crosses; reads of a variable there are not.
        grad if not source else _sum(grad, more) if source[0] in histories else more
        for source, grad, more in zip(request.outside, found, rest, strict=True)
    ]


def _sum(left: Any, right: Any) -> Any:
    return add([left, right]) if left is not None and right is not None else right if left is None else left


def refuse_outside(request: Request, refused: bool, what: str) -> None:
    """Raise if a query would have to cross from a graph to eager code, and cannot."""
    if refused and any(request.outside):
        raise TapeUseError(
            f"This tape was recorded in eager code and entered again inside a tf.function. There it is queried {what}, "
            "which is possible within one of the two only. Record both in eager code, or both in the function."
        )


def fill_constants(session: Session, request: Request, parts: Parts, found: list[Any]) -> list[Any]:
    """Replace None by zeros for derivatives of a constant gradient: there is a path, and the value is zero."""
    if not request.derived_from:
        return found
    return [
        zeros_like(part) if grad is None and source and _is_constant(session.trace, request, request, source) else grad
        for part, grad, source in zip(parts.flat, found, request.sources, strict=True)
    ]


def _is_constant(trace: Trace, original: Request, request: Request, source: tuple[int, ...]) -> bool:
    """Return whether a target is the derivative of something that depends on the source."""
    for earlier in request.derived_from:
        plan = make_plan(trace, earlier.targets, source, any(original.through), original.since)
        if not plan.reached.isdisjoint(earlier.targets) or _is_constant(trace, original, earlier, source):
            return True
    return False
