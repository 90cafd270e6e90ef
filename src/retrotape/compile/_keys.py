"""What two traces must have in common so that one compiled function serves both: the key, and what is known under it."""

from __future__ import annotations

from collections.abc import Container, Hashable
from typing import Any

from retrotape.compile._closures import describe
from retrotape.compile._observed import NotCompilableError
from retrotape.record import Trace

_SETS = ("assigned", "opaque", "unrecorded_updates", "uninitialized", "recomputed", "foreign")


def structure_key(trace: Trace) -> Hashable:
    """Return data that are equal for traces on which the same query runs the same ops.

    Values are not part of it, nor is the identity of variables. Constants of Python are leaves, whose values a compiled
    function takes as arguments, or compares if gradient functions read them.

    Raises:
      NotCompilableError: If the trace depends on more than can be described.
    """
    program, facts = trace.program, trace.facts
    if facts.bodies:
        raise NotCompilableError("the body of a function call was inlined")
    sets: list[Any] = [frozenset(getattr(facts, name)) for name in _SETS]
    return (
        tuple(program.eqns),
        tuple(program.types),
        tuple(tuple(history.versions) for history in facts.histories.values()),
        tuple(sets) if any(sets) else (),
        frozenset(trace.stopped_by_moments()) if facts.moments else (),
        described(trace, facts.calls),
    )


def described(trace: Trace, calls: Container[int] = ()) -> Hashable:
    """Return what the backward functions of a trace depend on; those of calls are TensorFlow's own."""
    return tuple(
        (index, back.inputs, back.outputs, back.captures, "call" if index in calls else describe(back.function, trace))
        for index, back in trace.backward_functions().items()
    )
