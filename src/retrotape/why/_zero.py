"""Where along a path a gradient becomes zero, and what made it so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrotape._tf import tf
from retrotape.errors import LostValueError
from retrotape.execute import Plan, Values
from retrotape.ir import Eqn
from retrotape.record import Recording
from retrotape.why._walk import Walked, is_zero

Said = tuple[str, str]  # what is so, what to do
STRAIGHT = "Let the gradient pass as if it were not there: `x + tf.stop_gradient(f(x) - x)`."


class Vanished(NamedTuple):
    """Where a gradient became zero."""

    eqn: int | None  # the equation, where one alone did it
    detail: str
    remedy: str
    others: int = 0  # more equations that do the same on other routes


def where_it_vanishes(recording: Recording, plan: Plan, walked: Walked) -> Vanished:
    """Return the equation that turns a gradient which is not zero into one that is."""
    found = []
    for index in sorted(walked.seen, reverse=True):
        given, passed = walked.seen[index]
        eqn = recording.builder.eqns[index]
        on = [grad for var, grad in zip(eqn.inputs, passed, strict=True) if var in plan.reached and grad is not None]
        if any(_some(grad) for grad in given) and on and not any(_some(grad) for grad in on):
            found.append(index)
    cancelled = _cancelled(recording, plan, walked)
    if found and cancelled is None:
        detail, remedy = _reason(recording, plan, found[0], walked.seen[found[0]][0][0])
        return Vanished(found[0], detail, remedy, len(found) - 1)
    if cancelled is not None:
        name = "the source" if cancelled in plan.sources else "one of the ops on the way"
        detail = f"Along several routes it is not zero, but at {name} they add up to zero."
        return Vanished(None, detail, "Look for terms in which it cancels.")
    if not any(_some(grad) for given, _ in walked.seen.values() for grad in given):
        return Vanished(None, "What flows into the target is zero.", "")
    return Vanished(None, "No op makes it zero by itself: several do, each for some of the elements.", "")


def _cancelled(recording: Recording, plan: Plan, walked: Walked) -> int | None:
    """Return a var at which several gradients, none of them zero, add up to zero."""
    terms: Counter[int] = Counter()
    for index, (_, found) in walked.seen.items():
        inputs = recording.builder.eqns[index].inputs
        terms.update(var for var, grad in zip(inputs, found, strict=True) if var in plan.reached and _some(grad))
    totals = dict(walked.arrived)
    for index, (given, _) in walked.seen.items():
        totals.update(zip(recording.builder.eqns[index].outputs, given, strict=True))
    return next((var for var, count in terms.items() if count > 1 and not _some(totals.get(var))), None)


def _some(grad: Any) -> bool:
    return grad is not None and not is_zero(grad)


def _reason(recording: Recording, plan: Plan, index: int, given: Any) -> Said:
    eqn = recording.builder.eqns[index]
    values = Values(recording)
    try:
        inputs = [values(var) for var in eqn.inputs]
    except LostValueError:
        return f"{eqn.op} passes nothing on here.", ""
    judge = _JUDGES.get(eqn.op)
    whole = isinstance(given, tf.Tensor)
    found = judge(_Case(eqn, inputs, [var in plan.reached for var in eqn.inputs], given)) if judge and whole else None
    return found or (f"{eqn.op} passes nothing on for the values that it had.", "")


class _Case(NamedTuple):
    eqn: Eqn
    inputs: list[Any]
    from_source: Sequence[bool]  # which inputs the source leads to
    given: Any  # what flows into its first result


_BEYOND = (
    "Every value that counts is beyond the bound, where the result does not depend on it.",
    "Widen the bound, or scale.",
)

# Each says what is so only after it has looked.


def _relu(case: _Case) -> Said | None:
    if bool(tf.reduce_all(case.inputs[0] <= 0)):
        return (
            f"All {tf.size(case.inputs[0]):d} values that go into the ReLU are zero or less: it is dead.",
            "Try another initialization, a smaller learning rate, or `tf.nn.leaky_relu`.",
        )
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
    others = zip(case.inputs[::-1], case.from_source, strict=True)  # to each factor, the other one
    if all(is_zero(other) for other, mine in others if mine):
        return "It is multiplied by zeros, such as a mask or a weight of zero.", "Look at the other factor."
    return None


def _select(case: _Case) -> Said | None:
    condition = case.inputs[0]
    taken, left = bool(tf.reduce_any(condition)), not bool(tf.reduce_all(condition))
    if (case.from_source[1] and taken) or (case.from_source[2] and left):
        return None
    return "The condition chooses the other branch everywhere.", "Look at the condition."


def _saturated(case: _Case) -> Said | None:
    size = float(tf.reduce_min(tf.abs(case.inputs[0])))
    if size < 8.0:  # tanh is 1 in single precision from about 9 on
        return None
    return f"It is saturated: every input is {size:.3g} or larger in size.", "Scale its input down, or normalize it."


def _at_zero(case: _Case) -> Said | None:
    if is_zero(case.inputs[0]):
        return f"Every input is zero, where {case.eqn.op} is flat.", "Start from other values than zero."
    return None


def _flat(case: _Case) -> Said | None:
    return f"{case.eqn.op} is flat between its steps: its derivative is zero for every value.", STRAIGHT


def _softmax(case: _Case) -> Said | None:
    if case.inputs[0].shape[-1] == 1:
        return "A softmax over one class is 1, whatever goes in.", "Use a sigmoid for one class, or two outputs."
    return None


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
    "Sign": _flat,
    "Softmax": _softmax,
}
