"""Derivatives that the backward pass refuses because they would be wrong; errors name the op and the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape._types import Cotangent
from retrotape.errors import NotRecordedError, OpaqueUpdateError, ReplicaError, UnrepairableError
from retrotape.execute._plan import Plan
from retrotape.ir import Eqn
from retrotape.record import Kind, Trace, function_traits, traits
from retrotape.rules import has_wrong_second
from retrotape.tf import core, functions, hooks


def _where(trace: Trace, eqn: Eqn) -> str:
    return str(trace.program.frame_of(eqn))


def refuse_communication(trace: Trace, eqn: Eqn, call: hooks.FunctionCall, inside: bool) -> None:
    """Raise if a path leads through a function in which replicas communicate."""
    if inside and function_traits(call.function).communicates:
        where = _where(trace, eqn)
        raise ReplicaError.on_path(f"{eqn.op} (at {where}), a tf.function in which replicas communicate")


def refuse_opaque(trace: Trace, eqn: Eqn, grads: list[Cotangent | None]) -> None:
    """Raise if a cotangent reaches a value that was assigned by an update without a gradient rule."""
    if traits(eqn.op).kind is Kind.PLAIN:  # for example the identities for outputs of an expanded call
        return
    for var, grad in zip(eqn.outputs, grads, strict=True):
        if grad is not None and var in trace.facts.opaque:
            raise OpaqueUpdateError(eqn.op, trace.name_of(trace.facts.history_of[var]), _where(trace, eqn))


def refuse_wrong_tangents(trace: Trace, eqn: Eqn, call: hooks.FunctionCall, grads: list[Cotangent | None]) -> None:
    """Raise if a function has computed a second derivative that TensorFlow gets wrong."""
    known, second = function_traits(call.function), call.function.second
    arrives = any(grads[position] is not None for position in second)
    if known.wrong_second and (arrives or not known.deterministic):
        raise UnrepairableError(eqn.op, _where(trace, eqn))


def refuse_unrepairable(trace: Trace, eqn: Eqn, operations: Sequence[Any] | None, index: int, plan: Plan) -> None:
    """Raise if a second derivative that TensorFlow gets wrong is inside a call in a graph."""
    if not eqn.op.endswith("PartitionedCall") or operations is None:
        return
    calls = [operations[i] for i in plan.indices if plan.eqns[i].op.endswith("PartitionedCall")]
    names = [call.get_attr("f").name for call in calls]
    second = any(part in name for name in names for part in ("__backward_", "_jvp_")) or core.accumulating()
    operation = operations[index]
    if second and has_wrong_second(set(functions.operations_called(operation))):
        raise UnrepairableError(operation.get_attr("f").name, _where(trace, eqn))


def refuse_draws(function: str, deterministic: bool) -> None:
    """Raise if a function that draws random numbers would have to be recomputed under a forward accumulator."""
    if not deterministic:
        raise NotRecordedError(
            function,
            "a tf.autodiff.ForwardAccumulator is open around the query, and the function contains random draws or "
            "Python code, so it cannot be recomputed",
            "Use `tape.hvp(...)` in place of the accumulator, or call the code without tf.function.",
            role="forward derivative of the gradient of",
        )
