"""Where along a path a gradient becomes zero, and what made it so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrotape._tf import tf
from retrotape.errors import LostValueError
from retrotape.execute import Values
from retrotape.ir import Eqn
from retrotape.record import Recording

Found = tuple[int | None, str, str]  # equation, what is so, what to do


def where_it_vanishes(recording: Recording, plan: Any, seen: dict[int, Any], path: Sequence[int] | None) -> Found:
    """Return the equation that turns a gradient which is not zero into one that is."""
    for index in sorted(seen, reverse=True):
        given, found = seen[index]
        eqn = recording.builder.eqns[index]
        passed = [grad for var, grad in zip(eqn.inputs, found, strict=True) if var in plan.reached and grad is not None]
        if any(_some(grad) for grad in given) and passed and not any(_some(grad) for grad in passed):
            detail, remedy = _reason(recording, eqn, Values(recording))
            return index, detail, remedy
    return None, "What flows into the target is zero already.", "Give `output_gradients` that are not zero."


def _some(grad: Any) -> bool:
    if grad is None:
        return False
    values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
    return bool(tf.reduce_any(values != 0))


def _reason(recording: Recording, eqn: Eqn, values: Values) -> tuple[str, str]:
    try:
        inputs = [values(var) for var in eqn.inputs]
    except LostValueError:
        return f"{eqn.op} passes nothing on here.", ""
    judge = _JUDGES.get(eqn.op)
    found = judge(inputs) if judge else None
    return found or (f"{eqn.op} passes nothing on for the values that it had.", "")


def _relu(inputs: list[Any]) -> tuple[str, str] | None:
    if bool(tf.reduce_all(inputs[0] <= 0)):
        return (
            f"All {tf.size(inputs[0]):d} values that go into the ReLU are zero or less: it is dead.",
            "Try another initialization, a smaller learning rate, or `tf.nn.leaky_relu`.",
        )
    return None


def _bound(inputs: list[Any]) -> tuple[str, str] | None:
    return "Every value is beyond the bound, where the result does not depend on it.", "Widen the bound, or scale."


def _product(inputs: list[Any]) -> tuple[str, str] | None:
    zeros = [not bool(tf.reduce_any(value != 0)) for value in inputs[:2]]
    if any(zeros):
        return "It is multiplied by zeros, such as a mask or a weight of zero.", "Look at the other factor."
    return None


def _select(inputs: list[Any]) -> tuple[str, str] | None:
    return "The condition chooses the other branch everywhere.", "Look at the condition."


def _saturated(inputs: list[Any]) -> tuple[str, str] | None:
    size = float(tf.reduce_min(tf.abs(inputs[0])))
    return f"It is saturated: every input is {size:.3g} or larger in size.", "Scale its input down, or normalize it."


_JUDGES: dict[str, Callable[[list[Any]], tuple[str, str] | None]] = {
    "Relu": _relu,
    "Relu6": _relu,
    "Minimum": _bound,
    "Maximum": _bound,
    "ClipByValue": _bound,
    "Mul": _product,
    "MatMul": _product,
    "BatchMatMulV2": _product,
    "SelectV2": _select,
    "Select": _select,
    "Sigmoid": _saturated,
    "Tanh": _saturated,
}
