"""Where along a path a gradient becomes zero, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrotape.diagnose.why._graph import Between
from retrotape.diagnose.why._walk import Walked, is_some, is_zero, measure
from retrotape.errors import LostValueError
from retrotape.execute import Plan, Values
from retrotape.ir import CUSTOM, Eqn
from retrotape.tf.core import tf

Said = tuple[str, str]  # the finding, the remedy
STRAIGHT = (
    "Use a straight-through estimator, whose backward pass treats the op as the identity: "
    "`x + tf.stop_gradient(f(x) - x)`; for a choice among classes, Gumbel-softmax."
)
CHOICE = (
    "Use a straight-through estimator, `soft + tf.stop_gradient(hard - soft)` with `soft = tf.nn.softmax(logits)` "
    "(`-logits` for a minimum); to sample, Gumbel-softmax: `tf.nn.softmax((logits + gumbel) / temperature)`."
)


class Vanished(NamedTuple):
    """Where a gradient became zero."""

    eqn: int | None  # the equation, if a single one did it
    detail: str
    remedy: str
    others: int = 0  # more equations that do the same on other paths


def find_vanishing(between: Between, plan: Plan, walked: Walked) -> Vanished:
    """Return the equation that turns a nonzero gradient into zeros."""
    found = [index for index in sorted(walked.seen, reverse=True) if walked.vanishes_at(index)]
    cancelled = _cancelled(between, plan, walked)
    if found and cancelled is None:
        detail, remedy = _reason(between, plan, *walked.vanishing)
        return Vanished(found[0], detail, remedy, len(found) - 1)
    if cancelled is not None:
        name = "the source" if cancelled in plan.sources else between.name_of(cancelled)
        detail = f"The gradients along several paths are not zero, but their sum at {name} is."
        return Vanished(None, detail, "Look for terms that cancel.")
    if not any(is_some(size) for seen in walked.seen.values() for size in seen.given):
        return Vanished(None, "The incoming gradient of the target is zero.", "")
    return Vanished(None, "No single op makes it zero: several ops do, each for some of the elements.", "")


def _cancelled(between: Between, plan: Plan, walked: Walked) -> int | None:
    """Return a var at which several nonzero gradients add up to zero."""
    terms: Counter[int] = Counter()
    totals = {var: measure(grad) for var, grad in walked.arrived.items()}
    for index, seen in walked.seen.items():
        eqn = between.eqns[index]
        terms.update(var for var, size in zip(eqn.inputs, seen.found, strict=True) if is_some(size))
        totals.update(zip(eqn.outputs, seen.given, strict=True))
    return next((var for var, count in terms.items() if count > 1 and not is_some(totals.get(var))), None)


def _reason(between: Between, plan: Plan, index: int, given: Any) -> Said:
    eqn = between.eqns[index]
    if eqn.op == CUSTOM:
        return "Its gradient function returned zeros.", "Check what the custom gradient returns."
    values = Values(between.trace)
    try:
        inputs = [values(var) for var in eqn.inputs]
    except LostValueError:
        return f"The gradient of {eqn.op} is zero here.", ""
    case = _Case(eqn, inputs, [var in plan.reached for var in eqn.inputs], given)
    whole = isinstance(given, tf.Tensor)
    judges = (_empty, _JUDGES.get(eqn.op, _unknown)) if whole else (_empty,)
    found = next((said for said in (judge(case) for judge in judges) if said is not None), None)
    if found is None:
        return f"The gradient of {eqn.op} is zero for the inputs that it had.", ""
    zeros = between.origin(eqn.inputs[0])
    if eqn.op in _FLAT_AT_ZERO and between.producers[zeros] >= 0:
        return f"{found[0]} The zeros are {between.name_of(zeros)}.", found[1]
    return found


class _Case(NamedTuple):
    eqn: Eqn
    inputs: list[Any]
    from_source: Sequence[bool]  # which inputs the source leads to
    given: Any  # the incoming gradient of its first output


_BEYOND = (
    "Every value that contributes to the target is beyond the bound, where the result is constant.",
    "Widen the bound, or scale the input.",
)

# Each makes a claim only if the values prove it.


def _relu(case: _Case) -> Said | None:
    low, remedy = case.inputs[0] <= 0, "Try another initialization, a smaller learning rate, or `tf.nn.leaky_relu`."
    if bool(tf.reduce_all(low)):
        size = tf.size(case.inputs[0])
        return f"All {size:d} inputs of the ReLU are zero or negative: it is dead.", remedy
    if bool(tf.reduce_all(low | (case.given == 0))):
        return "Every input of the ReLU that contributes to the target is zero or negative.", remedy
    return None


def _bound(case: _Case) -> Said | None:
    if case.from_source[0] == case.from_source[1]:
        return None
    mine, bound = case.inputs[:2] if case.from_source[0] else case.inputs[1::-1]
    beyond = mine >= bound if case.eqn.op == "Minimum" else mine <= bound
    if bool(tf.reduce_all(beyond | (case.given == 0))):
        return _BEYOND
    return None


def _clip(case: _Case) -> Said | None:
    value, low, high = case.inputs
    if case.from_source[0] and bool(tf.reduce_all((value <= low) | (value >= high) | (case.given == 0))):
        return _BEYOND
    return None


def _product(case: _Case) -> Said | None:
    others = [other for other, mine in zip(case.inputs[::-1], case.from_source, strict=True) if mine]  # for each factor
    if all(is_zero(other) for other in others):
        return "It is multiplied by zeros, such as a mask or a weight of zero.", "Check the other factor."
    if case.eqn.op == "Mul":
        return _underflow(case, max(_largest(_double(case.given) * _double(other)) for other in others))
    return None


def _underflow(case: _Case, size: float) -> Said | None:
    """Return that a gradient of at most `size` in float64 is too small for its dtype, if it is."""
    dtype = case.inputs[0].dtype
    least = float(np.finfo(dtype.as_numpy_dtype).tiny) if dtype.as_numpy_dtype in _FLOATS else 0.0
    if not 0.0 < size < least:
        return None
    wider = "float32" if dtype == tf.float16 else "float64"
    return (
        f"It underflows: the largest element would be {size:.3g}, which {dtype.name} flushes to zero.",
        f"Scale the loss up and the gradient back down, or compute it in {wider}.",
    )


def _largest(values: Any) -> float:
    return float(tf.reduce_max(tf.abs(values))) if tf.size(values) else 0.0


def _double(values: Any) -> Any:
    return tf.cast(values, tf.complex128 if values.dtype.is_complex else tf.float64)


def _cast(case: _Case) -> Said | None:
    if case.given.dtype.is_complex and not case.inputs[0].dtype.is_complex:
        if is_zero(tf.math.real(case.given)):
            detail = "The input is real, and only the imaginary part of the result is used: that is always zero."
            return detail, "Check where the real part is dropped."
        return None
    return _underflow(case, _largest(_double(case.given)))


def _power(case: _Case) -> Said | None:
    base, power = case.inputs
    if case.from_source[0] and not case.from_source[1] and is_zero(base) and bool(tf.reduce_all(power > 1)):
        return _at_zero(case)
    return None


def _exp(case: _Case) -> Said | None:
    if is_zero(tf.exp(case.inputs[0])):
        largest = float(tf.reduce_max(case.inputs[0]))
        return f"Its result is 0: every input is {largest:.3g} or less.", "Scale its input, or work in log space."
    return None


def _part(case: _Case) -> Said | None:
    detail = "Only another part of its result contributes to the target, not the part that comes from the source."
    return detail, "Check what is taken from it: a slice, a maximum or a mask."


def _certain(case: _Case) -> Said | None:
    logits, labels = case.inputs
    if labels.dtype.is_integer:
        labels = tf.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    same = tf.reduce_all(tf.nn.softmax(logits) == labels, axis=-1)
    if not bool(tf.reduce_all(same | (case.given == 0))):
        return None
    detail = "The softmax of the logits already equals the labels exactly."
    return detail, "If the labels are right, this is expected; otherwise scale the logits down."


def _rows(case: _Case) -> Said | None:
    indices = tf.reshape(case.inputs[1], [-1])
    if case.from_source[0] and int(tf.size(tf.unique(indices).y)) < int(tf.size(indices)):
        return "The gradients of a row that is gathered several times add up to zero.", "Look for terms that cancel."
    return None


def _overwritten(case: _Case) -> Said | None:
    if case.from_source[0] and not any(case.from_source[1:]):
        return "Every element that contributes to the target is overwritten.", "Check the indices."
    return None


def _empty(case: _Case) -> Said | None:
    sizes = [tf.size(value) for value, mine in zip(case.inputs, case.from_source, strict=True) if mine]
    if sizes and not any(sizes):
        return "Its input has no elements.", "Check the mask or the slice that leaves nothing."
    return None


def _unknown(case: _Case) -> Said | None:
    return None


def _select(case: _Case) -> Said | None:
    condition = case.inputs[0]
    taken, left = bool(tf.reduce_any(condition)), not bool(tf.reduce_all(condition))
    if (case.from_source[1] and taken) or (case.from_source[2] and left):
        return None
    return "The condition selects the other branch everywhere.", "Check the condition."


def _saturated(case: _Case) -> Said | None:
    size = float(tf.reduce_min(tf.abs(case.inputs[0])))
    if size < 8.0:  # tanh is 1 in single precision from about 9 on
        return None
    return (
        f"It is saturated: every input has an absolute value of at least {size:.3g}.",
        "Scale its input down, or normalize it.",
    )


def _at_zero(case: _Case) -> Said | None:
    if is_zero(case.inputs[0]):
        return (
            f"Every input is zero, where {case.eqn.op} is flat.",
            "Start from nonzero values. For an error that is already zero, this is expected.",
        )
    return None


def _flat(case: _Case) -> Said | None:
    return f"{case.eqn.op} is piecewise constant: its derivative is zero everywhere.", STRAIGHT


def _softmax(case: _Case) -> Said | None:
    if case.inputs[0].shape[-1] == 1:
        return "A softmax over one class is always 1.", "Use a sigmoid for one class, or two outputs."
    if bool(tf.reduce_all(case.given == case.given[..., :1])):
        return (
            "The incoming gradient is the same for all classes, and a softmax always adds up to 1.",
            "Weight the classes, or use a loss such as `tf.nn.softmax_cross_entropy_with_logits`.",
        )
    return None


_FLAT_AT_ZERO = frozenset(("Square", "Abs", "Pow"))
_FLOATS = (np.float16, np.float32, np.float64)
_JUDGES: dict[str, Callable[[_Case], Said | None]] = {
    "Relu": _relu,
    "Relu6": _relu,
    "Minimum": _bound,
    "Maximum": _bound,
    "ClipByValue": _clip,
    "Mul": _product,
    "MatMul": _product,
    "BatchMatMulV2": _product,
    "SelectV2": _select,
    "Select": _select,
    "Sigmoid": _saturated,
    "Tanh": _saturated,
    "Square": _at_zero,
    "Abs": _at_zero,
    "Pow": _power,
    "Sign": _flat,
    "Cast": _cast,
    "Exp": _exp,
    "TensorScatterUpdate": _overwritten,
    "ResourceGather": _rows,
    "GatherV2": _rows,
    "ConcatV2": _part,
    "Pack": _part,
    "SoftmaxCrossEntropyWithLogits": _certain,
    "SparseSoftmaxCrossEntropyWithLogits": _certain,
    "Softmax": _softmax,
}
