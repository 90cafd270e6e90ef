"""Op name → gradient rule. Three outcomes, three types: a rule, declared non-differentiable, unknown to TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retrotape.rules._repairs import REPAIRS
from retrotape.tf import core


class Rule(NamedTuple):
    """TensorFlow's gradient function of an op: `function(op_view, *grads) -> grads of the inputs`."""

    function: Callable


class NoGradient(NamedTuple):
    """TensorFlow declares the op non-differentiable: the path ends there, and the gradient is None."""

    op: str


class UnknownOp(NamedTuple):
    """TensorFlow has no gradient registered for the op: a path through it is an error."""

    op: str


RULES: dict[str, Rule] = {}


def lookup(op: str) -> Rule | NoGradient | UnknownOp:
    """Return the gradient rule of `op`.

    >>> type(lookup("MatMul")).__name__, lookup("ArgMax").function.__name__, lookup("Floor").function.__name__
    ('Rule', '_ArgMaxGrad', '_FloorGrad')
    >>> lookup("ZerosLike"), lookup("no_such_op")
    (NoGradient(op='ZerosLike'), UnknownOp(op='no_such_op'))
    """
    rule = RULES.get(op)
    if rule is not None:
        return rule
    try:
        function = core.registered_rule(op)
    except LookupError:
        return UnknownOp(op)  # not cached: the user may still register a gradient
    if function is None:
        return NoGradient(op)
    rule = RULES[op] = Rule(_repaired(op, function))
    return rule


def _repaired(op: str, function: Callable) -> Callable:
    return REPAIRS[op](function) if op in REPAIRS else function


def lookup_operation(operation: Any) -> Rule | NoGradient | UnknownOp:
    """Like `lookup`, for an operation of a graph, which may carry a gradient of its own."""
    try:
        function = core.operation_rule(operation)
    except LookupError:
        return UnknownOp(operation.type)
    return NoGradient(operation.type) if function is None else Rule(_repaired(operation.type, function))


# For these outputs the rule accepts None; everywhere else a missing gradient is passed as zeros.
ACCEPTS_NONE: dict[str, tuple[int, ...]] = {
    "SoftmaxCrossEntropyWithLogits": (1,),
    "SparseSoftmaxCrossEntropyWithLogits": (1,),
    "FusedBatchNorm": (1, 2, 3, 4),
    "FusedBatchNormV2": (1, 2, 3, 4),
    "FusedBatchNormV3": (1, 2, 3, 4, 5),
}
