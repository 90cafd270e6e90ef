"""What two traces must have in common so that one compiled function serves both."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from inspect import isclass
from typing import Any

from retrotape._types import Tensor
from retrotape.ir import CUSTOM, Eqn
from retrotape.lower._closures import describe
from retrotape.lower._observed import NotCompilableError
from retrotape.record import Trace
from retrotape.rules import Rule, lookup
from retrotape.tf import core
from retrotape.tf.closures import is_library_code
from retrotape.tf.core import identity_of, shape_of

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
    check_rules(program.eqns)
    sets: list[Any] = [frozenset(getattr(facts, name)) for name in _SETS]
    return (
        tuple(program.eqns),
        tuple(program.types),
        tuple(tuple(history.versions) for history in facts.histories.values()),
        tuple(sets) if any(sets) else (),
        frozenset(trace.stopped_by_moments()) if facts.moments else (),
        described(trace),
    )


def check_rules(eqns: Iterable[Eqn]) -> None:
    """Raise if a gradient function was registered by user code."""
    for op in {eqn.op for eqn in eqns}:
        if _has_user_rule(op):
            raise NotCompilableError(f"the gradient function of {op} is not TensorFlow's own")


def _has_user_rule(op: str) -> bool:
    """Return whether the gradient function of an op was registered by user code, which may have state."""
    rule = None if op == CUSTOM or core.op_def(op) is None else lookup(op)
    return isinstance(rule, Rule) and not _is_library_function(rule.function)


def _is_library_function(function: Any) -> bool:
    """Return whether a function is TensorFlow's, and not only a wrapper of it around user code."""
    code = getattr(function, "__code__", None)
    if code is None or not is_library_code(code):  # an object that can be called has no code
        return False
    try:
        inside = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a cell without contents
        return False
    return all(_is_library_function(value) for value in inside if callable(value) and not isclass(value))


def tensors_in(description: Any) -> set[int]:
    """Return the identities of the tensors in a description that are not on the trace."""
    if not isinstance(description, tuple):
        return set()
    if len(description) == 3 and description[0] == "tensor":
        return {description[1]}
    return set().union(*map(tensors_in, description))


def described(trace: Trace) -> Hashable:
    """Return what the backward functions of a trace depend on; those of calls are TensorFlow's own."""
    calls, functions = trace.calls(), trace.backward_functions()
    return tuple(
        (index, back.inputs, back.outputs, back.captures, "call" if index in calls else describe(back.function, trace))
        for index, back in functions.items()
    )


def check_unchanged(trace: Trace, before: Hashable) -> None:
    """Raise if running backward functions has changed what they refer to, such as an array."""
    if described(trace) != before:
        raise NotCompilableError("a backward function changes something that it refers to")


def roles(trace: Trace, inputs: Sequence[Tensor]) -> Hashable:
    """Return the type of each input, and what it is besides.

    It may be the same tensor as an earlier input, as one of the trace, or as one that a backward function refers to.
    """
    if not inputs:
        return ()
    identities, held = [identity_of(tensor) for tensor in inputs], tensors_in(described(trace))
    return tuple(
        [
            (
                *(core.eager_dtype(tensor), shape_of(tensor), identities.index(identity)),
                *(trace.tensors.get(identity), identity if identity in held else None),
            )
            for tensor, identity in zip(inputs, identities, strict=True)
        ]
    )
