"""The search for the culprit: the op that produced the value, not those that passed it on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from retrotape.diagnose.nonfinite._backward import judge_backward
from retrotape.diagnose.nonfinite._causes import Cause
from retrotape.diagnose.nonfinite._domains import judge_forward
from retrotape.diagnose.nonfinite._forward import INF, NAN, Pass, kind_of
from retrotape.diagnose.nonfinite._result import Nonfinite
from retrotape.diagnose.nonfinite._scene import Scene
from retrotape.diagnose.why import title_of
from retrotape.errors import (
    LostValueError,
    NoRuleError,
    OpaqueUpdateError,
    UnrepairableError,
    UnseenUpdateError,
)
from retrotape.execute import Plan, RuleVjp, make_plan, walk
from retrotape.ir import CUSTOM, LEAF, Frame, slice_to
from retrotape.record import Trace, current_stack
from retrotape.tf.core import tf
from retrotape.transform import flatten_if_possible

_NO_GRADIENT = (NoRuleError, LostValueError, UnrepairableError, OpaqueUpdateError)
_FAILURES = (RuntimeError, TypeError, ValueError, tf.errors.OpError)


class Culprit(NamedTuple):
    """Where a non-finite value comes from: the equation that produced it, or that first used it as an input."""

    place: int
    leaf: int | None = None


class _Found(Exception):
    def __init__(self, index: int, given: Sequence[Any], made: Sequence[Any] | None) -> None:
        self.index, self.given, self.made = index, given, made


def first_nonfinite(trace: Trace, targets: Sequence[int], named: Collection[int] = ()) -> Nonfinite | None:
    """Return the first culprit in the forward pass to the targets, or anywhere if there are none; else backward.

    Args:
      trace: The trace.
      targets: Vars; if there are none, `results` are where gradients begin.
      named: Identities of tensors that the user has named.
    """
    trace, targets = flattened(trace, targets)
    with current_stack().unrecorded():  # what is recomputed here must not be recorded
        return _towards(trace, targets) if targets else _anywhere(trace, results(trace, named))


def results(trace: Trace, named: Collection[int] = ()) -> list[int]:
    """Return the floating-point vars that ops made and that have a name, or that nothing uses further."""
    eqns, types = trace.program.eqns, trace.program.types
    used = {var for eqn in eqns for var in eqn.inputs}
    known = {trace.tensors.get(identity) for identity in named}
    made = [var for eqn in eqns for var in eqn.outputs if var in known or var not in used]
    return [var for var in made if tf.as_dtype(types[var].dtype).is_floating and var not in trace.facts.history_of]


def scalars(trace: Trace, variables: Sequence[int]) -> list[int]:
    """Return the vars that are scalars, the usual targets of gradients."""
    return [var for var in variables if trace.program.types[var].shape == ()]


def _towards(trace: Trace, targets: Sequence[int]) -> Nonfinite | None:
    indices = slice_to(trace.program, targets)
    forward = Pass(trace, indices)
    for _ in forward.run():
        pass  # to the end: only what reaches the target counts
    for var in targets:  # also those that no equation made
        forward.inspect(var)
    scene = Scene(trace, indices)
    culprit = blame(scene, forward.flags, targets)
    if culprit is not None:
        return _forward(scene, culprit, forward.flags, reaches=True)
    given = [var for var in targets if var in forward.flags]
    if given:  # no op made or used it
        return Nonfinite("nothing", False, Frame("<outside>", 0, "?"), (), Cause.GIVEN, scene.given(given[0]))
    return _backward(scene, targets, forward.flags)


def flattened(trace: Trace, targets: Sequence[int]) -> tuple[Trace, Sequence[int]]:
    """Return a trace in which functions are inlined, where that is possible, and the targets there."""
    flat = flatten_if_possible(trace)
    if flat is trace:
        return trace, targets
    wanted = {var: trace.facts.history_of.get(var) for var in targets}
    found = {var: flat.facts.histories[history.key].current for var, history in wanted.items() if history is not None}
    for identity, var in trace.tensors.items():
        new = flat.tensors.get(identity) if var in wanted else None
        if new is not None:
            found.setdefault(var, new)
    return (flat, [found[var] for var in targets]) if len(found) == len(wanted) else (trace, targets)


# ------------------------------------------------------------------ forward


def _anywhere(trace: Trace, ends: Sequence[int]) -> Nonfinite | None:
    """Return the first op that produced a non-finite value, forward, or else backward from scalars among `ends`.

    An infinite input may be intended, as in a mask: it counts if one of `ends` contains it.
    """
    indices = range(len(trace.program.eqns))
    forward = Pass(trace, indices)
    flags = forward.flags
    for index in forward.run():
        eqn = trace.program.eqns[index]
        bad = [var for var in eqn.inputs if var in flags]
        given = next((var for var in bad if flags[var] & NAN), None)  # an input: otherwise it would have been found
        if given is not None:
            return _forward(Scene(trace, indices), Culprit(index, given), flags)
        makes_nan = any(flags.get(var, 0) & NAN for var in eqn.outputs)
        if makes_nan or (not bad and any(var in flags for var in eqn.outputs)):
            return _forward(Scene(trace, indices), Culprit(index), flags)
    scene = Scene(trace, indices)
    culprit = blame(scene, flags, ends)
    if culprit is not None:
        return _forward(scene, culprit, flags, reaches=True)
    losses = scalars(trace, ends)
    return _backward(scene, losses, flags) if losses else None


def blame(scene: Scene, flags: dict[int, int], variables: Iterable[int]) -> Culprit | None:
    """Trace non-finite values to their origin."""
    trace, indices = scene.trace, scene.indices
    eqns, producers = trace.program.eqns, trace.program.producers
    pending = [var for var in variables if var in flags]
    seen: set[int] = set(pending)
    made: list[int] = []
    nan_of_inf: list[int] = []
    leaves: set[int] = set()
    while pending:
        var = pending.pop()
        index = producers[var]
        if index == LEAF:
            leaves.add(var)
            continue
        bad = [other for other in scene.taken(eqns[index]) if other in flags]
        if not flags[var] & NAN:
            bad = [other for other in bad if flags[other] & INF] or bad
        elif not any(flags[other] & NAN for other in bad):
            nan_of_inf.append(index)
        if not bad:
            made.append(index)
        fresh = [other for other in bad if other not in seen]
        seen.update(fresh)
        pending += fresh
    given = _first_use(trace, {var for var in leaves if flags[var] & NAN}, indices)
    if given is not None and (not made or given.place <= min(made)):
        return given
    if made or nan_of_inf:
        return Culprit(min(made or nan_of_inf))
    return _first_use(trace, leaves, indices)


def _first_use(trace: Trace, leaves: Collection[int], indices: Sequence[int]) -> Culprit | None:
    for index in (*indices, *range(len(trace.program.eqns))) if leaves else ():
        for var in trace.program.eqns[index].inputs:
            if var in leaves:
                return Culprit(index, var)
    return None


def _forward(scene: Scene, culprit: Culprit, flags: dict[int, int], reaches: bool = False) -> Nonfinite:
    """Return the report; if the value `reaches` a target, no `tf.where` has masked it."""
    if culprit.leaf is not None:
        return _report(scene, culprit.place, False, Cause.GIVEN, scene.given(culprit.leaf))
    return _report(scene, culprit.place, False, *judge_forward(scene, culprit.place, flags, reaches))


# ------------------------------------------------------------------ backward


def _backward(scene: Scene, targets: Sequence[int], flags: dict[int, int]) -> Nonfinite | None:
    """Return the first op whose gradient is not finite although its incoming gradient is."""
    for through_updates in (False, True):  # the default, and then the option
        if through_updates and not scene.trace.facts.assigned:
            return None
        try:
            _check_backward(scene.trace, targets, through_updates)
        except (OpaqueUpdateError, UnseenUpdateError):  # such a query would fail too
            continue
        except _Found as found:
            return _judged(scene, found, flags)
    return None


def _judged(scene: Scene, found: _Found, flags: dict[int, int]) -> Nonfinite:
    if found.made is None:
        text = "Each incoming gradient is finite, but their sum is not."
        return _report(scene, found.index, True, Cause.OVERFLOW, text)
    eqn = scene.eqns[found.index]
    origin = blame(scene, flags, scene.involved((*eqn.inputs, *eqn.outputs), found.made))
    if origin is None:
        return _report(scene, found.index, True, *judge_backward(scene, found.index, found.given, found.made))
    report = _forward(scene, origin, flags)  # its gradient is only a consequence
    return report._replace(backward=report.cause is Cause.WHERE)


def _check_backward(trace: Trace, targets: Sequence[int], through_updates: bool) -> None:
    leaves = [var for var, producer in enumerate(trace.program.producers) if producer == LEAF]
    plan = make_plan(trace, targets, [*leaves, *trace.facts.assigned], through_updates)
    pull = RuleVjp(trace)

    def watched(index: int, grads: list[Any], plan: Plan) -> Sequence[Any]:
        given = list(grads)
        if any(map(kind_of, given)):  # each term was finite: it is the sum
            raise _Found(index, given, None)
        try:
            found = pull(index, grads, plan)
        except _NO_GRADIENT:  # irrelevant for queries about other sources
            return [None] * len(trace.program.eqns[index].inputs)
        except _FAILURES:
            if trace.program.eqns[index].op != CUSTOM:
                raise
            return [None] * len(trace.program.eqns[index].inputs)  # user code, which needs a lost value
        if any(map(kind_of, found)):
            raise _Found(index, given, found)
        return found

    types = trace.program.types
    seeds = {var: [tf.ones(types[var].shape, types[var].dtype)] for var in targets}
    for _ in walk(plan, seeds, watched):
        pass  # the gradients themselves are not needed


def _report(scene: Scene, index: int, backward: bool, cause: Cause, detail: str) -> Nonfinite:
    eqn = scene.eqns[index]
    if index in scene.trace.facts.calls and cause is Cause.UNKNOWN:
        cause = Cause.INSIDE_FUNCTION
    frame = scene.trace.program.frame_of(eqn)
    name, saved = title_of(scene.trace, index), scene.trace.frames.saved_code(eqn.frame) or ""
    return Nonfinite(name, backward, frame, tuple(map(scene.range_of, eqn.inputs)), cause, detail, saved)
