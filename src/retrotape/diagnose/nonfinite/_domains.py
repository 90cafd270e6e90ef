"""Why an op produced a non-finite value: proven by the values, never guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from retrotape.diagnose.nonfinite._causes import Cause
from retrotape.diagnose.nonfinite._double import Verdict, dtype_name, largest, overflow, smallest
from retrotape.diagnose.nonfinite._forward import NAN
from retrotape.diagnose.nonfinite._scene import Scene
from retrotape.ir import Eqn

Numbers = np.ndarray
_Judge = Callable[[Scene, Eqn, list[Numbers], Numbers], "Verdict | None"]
_UNKNOWN: Verdict = (Cause.UNKNOWN, "")


def judge_forward(scene: Scene, index: int, flags: dict[int, int], reaches: bool = False) -> Verdict:
    """Return why the output of equation `index` is not finite; `reaches` means that no `tf.where` masks it."""
    eqn = scene.eqns[index]
    scene.fetch_around(eqn)
    inputs = [scene.numbers(var) for var in eqn.inputs]
    outputs = [(var, scene.numbers(var)) for var in eqn.outputs if var in flags]
    if not outputs or outputs[0][1] is None:
        return _UNKNOWN
    bad = ~np.isfinite(outputs[0][1])
    if any(flags.get(var, 0) & NAN for var in eqn.outputs) and any(var in flags for var in eqn.inputs):
        bad = np.isnan(outputs[0][1])
    line = None if reaches else scene.not_taken(eqn.outputs, bad)
    if line is not None:
        plain = _by_op(scene, eqn, inputs, bad)
        first = f"{plain[1]} " if plain is not None else ""
        return (
            Cause.WHERE,
            f"{first}`tf.where` at {line} selects the other branch there, but both branches are differentiated.",
        )
    return _by_op(scene, eqn, inputs, bad) or overflow(scene, eqn) or _UNKNOWN


def _by_op(scene: Scene, eqn: Eqn, inputs: list[Any], bad: Numbers) -> Verdict | None:
    judge = _JUDGES.get(eqn.op)
    needed = inputs[: _COUNTS.get(eqn.op, 1)]
    if judge is None or any(numbers is None for numbers in needed):
        return None
    return judge(scene, eqn, needed, bad)


def at_places(text: str, met: Numbers) -> str:
    """Return a sentence with the number of positions where it holds."""
    return f"{text}." if met.size == 1 else f"{text} at {int(met.sum())} of {met.size} positions."


def _where(condition: Numbers, bad: Numbers, text: str) -> str | None:
    """Return a sentence if a condition holds at every non-finite element."""
    met = np.broadcast_to(condition, bad.shape)
    return at_places(text, bad) if bad.any() and met[bad].all() else None


def _zero(scene: Scene, eqn: Eqn, x: Numbers, bad: Numbers, what: str, name: str = "0") -> str | None:
    """Return that a value is zero, or so small that the processor flushes it to zero, if it is."""
    tiny = smallest(scene.trace.program.types[eqn.outputs[0]])
    return _where(x == 0, bad, f"{what} is exactly {name}") or _where(
        np.abs(x) < tiny, bad, f"{what} is below {tiny:.3g}, which is flushed to 0,"
    )


# ------------------------------------------------------------------ logarithms


def _log(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    x = inputs[0] + (1.0 if eqn.op == "Log1p" else 0.0)
    if (x[bad] < 0).any():
        return Cause.LOG_OF_NEGATIVE, at_places(f"The input is below {_edge(eqn)}", x < 0)
    said = _zero(scene, eqn, x, bad, "The input", _edge(eqn))
    if said is None:
        return None
    by_hand = _cross_entropy(scene, eqn)
    if by_hand is not None:
        return by_hand, said
    factor = _zero_factor(scene, eqn, bad)
    if factor:
        return Cause.ZERO_TIMES_LOG, f"{said} {factor}"
    return Cause.LOG_OF_ZERO, said


def _edge(eqn: Eqn) -> str:
    return "-1" if eqn.op == "Log1p" else "0"


def _cross_entropy(scene: Scene, eqn: Eqn) -> Cause | None:
    """Return the cross-entropy that this log is part of, if TensorFlow has it as an op."""
    made = scene.maker(eqn.inputs[0])
    if made is not None and made.op == "Sub" and scene.is_all(made.inputs[0], 1.0):
        made = scene.maker(made.inputs[1])
    elif made is not None and made.op == "Neg" and eqn.op == "Log1p":
        made = scene.maker(made.inputs[0])
    if made is None:
        return None
    if made.op == "RealDiv":
        top, bottom = (scene.maker(var) for var in made.inputs)
        summed = None if bottom is None or bottom.op != "Sum" else scene.maker(bottom.inputs[0])
        return Cause.SOFTMAX_CROSS_ENTROPY if top is not None and top.op == "Exp" and summed is top else None
    return {"Sigmoid": Cause.SIGMOID_CROSS_ENTROPY, "Softmax": Cause.SOFTMAX_CROSS_ENTROPY}.get(made.op)


def _zero_factor(scene: Scene, eqn: Eqn, bad: Numbers) -> str | None:
    """Return at which line the result is multiplied by zeros wherever it is not finite."""
    for var, use in scene.uses(eqn.outputs):
        if use.op == "Mul" and len(set(use.inputs)) == 2:
            other = scene.numbers(use.inputs[0] if use.inputs[1] == var else use.inputs[1])
            shape = scene.trace.program.types[use.outputs[0]].shape
            if other is not None and shape == bad.shape and not np.broadcast_to(other, bad.shape)[bad].any():
                return f"The factor is 0 there, at {scene.trace.program.frame_of(use)}."
    return None


# ------------------------------------------------------------------ roots, quotients, powers


def _sqrt(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    x = inputs[0]
    if (x[bad] < 0).any():
        return Cause.SQRT_OF_NEGATIVE, at_places("The input is below 0", x < 0)
    said = _zero(scene, eqn, x, bad, "The input")
    return None if said is None else (Cause.RSQRT_OF_ZERO, said)


def _quotient(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    top, bottom = inputs if len(inputs) == 2 else (np.ones(()), inputs[0])
    said = _zero(scene, eqn, bottom, bad, "The divisor")
    if said is None:
        return None
    if not np.broadcast_to(top, bad.shape)[bad].any():
        return Cause.ZERO_OVER_ZERO, said
    factor = _zero_factor(scene, eqn, bad)
    return (Cause.MASKED_BY_PRODUCT, f"{said} {factor}") if factor else (Cause.DIVISION_BY_ZERO, said)


def _pow(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    base, power = inputs
    said = _where((base < 0) & (power != np.round(power)), bad, "The base is negative and the power is not an integer")
    if said:
        return Cause.POW_OF_NEGATIVE, said
    said = _where((base == 0) & (power < 0), bad, "The base is exactly 0 and the power is negative")
    return (Cause.POW_OF_ZERO, said) if said else None


_DOMAINS: dict[str, tuple[Callable[[Numbers], Numbers], str]] = {
    "Acos": (lambda x: abs(x) > 1, "outside [-1, 1]"),
    "Asin": (lambda x: abs(x) > 1, "outside [-1, 1]"),
    "Atanh": (lambda x: abs(x) >= 1, "not inside (-1, 1)"),
    "Acosh": (lambda x: x < 1, "below 1"),
    "Erfinv": (lambda x: abs(x) >= 1, "not inside (-1, 1)"),
}


def _domain(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    outside, text = _DOMAINS[eqn.op]
    said = _where(outside(inputs[0]), bad, f"The input is {text}")
    return (Cause.OUTSIDE_DOMAIN, said) if said else None


def _cholesky(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    lower = np.tril(inputs[0])  # the op reads nothing else
    whole = lower + np.swapaxes(np.tril(inputs[0], -1), -1, -2)
    if not np.isfinite(whole).all():
        return None
    least = np.linalg.eigvalsh(whole).min(-1)
    wrong = bad.any((-2, -1))
    if not wrong.any() or not (least[wrong] <= 0).all():
        return None
    return Cause.NOT_DEFINITE, f"Its smallest eigenvalue is {least[wrong].min():.3g}."


def _mean(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    if inputs[0].size:
        return None
    return Cause.MEAN_OF_NOTHING, f"The input, {scene.trace.program.types[eqn.inputs[0]]}, has no elements."


# ------------------------------------------------------------------ exponentials


def _exp(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    kind = scene.trace.program.types[eqn.outputs[0]]
    limit = np.log(largest(kind))
    beyond = np.abs(inputs[0]) >= limit - 1e-3
    said = _where(beyond, bad, f"The input is beyond {limit:.4g}, where {eqn.op} overflows in {dtype_name(kind)},")
    if said is None:
        return None
    return (_made_of_exp(scene, eqn) if eqn.op == "Exp" else Cause.EXP_OVERFLOW), said


def _made_of_exp(scene: Scene, eqn: Eqn) -> Cause:
    """Return what is computed by hand with this exp, if TensorFlow has it as an op."""
    uses = [use for _, use in scene.uses(eqn.outputs)]
    sums = [use for use in uses if use.op == "Sum"]
    after_sum = {use.op for total in sums for _, use in scene.uses(total.outputs)}
    plus_one = [
        use
        for var, use in scene.uses(eqn.outputs)
        if use.op in ("AddV2", "Add") and any(scene.is_all(other, 1.0) for other in use.inputs if other != var)
    ]
    after_one = {use.op for total in plus_one for _, use in scene.uses(total.outputs)}
    if any(use.op == "RealDiv" for use in uses) and "RealDiv" in after_sum:
        return Cause.SOFTMAX_BY_HAND
    if "Log" in after_sum:
        return Cause.LOGSUMEXP_BY_HAND
    if "Log" in after_one or any(use.op == "Log1p" for use in uses):
        return Cause.SOFTPLUS_BY_HAND
    if after_one & {"RealDiv", "Reciprocal", "Inv"}:
        return Cause.SIGMOID_BY_HAND
    return Cause.EXP_OVERFLOW


# ------------------------------------------------------------------ infinite inputs


def _softmax(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    masked = (inputs[0] == -np.inf).all(-1)
    rows = bad.any(-1) if bad.shape == inputs[0].shape else bad
    if not masked.any() or rows.shape != masked.shape or not masked[rows].all():
        return None
    return Cause.ALL_MASKED, f"{int(masked.sum())} of {masked.size} rows have no other value."


def _difference(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    left, right = inputs
    opposite = np.isinf(left) & (left == (right if eqn.op == "Sub" else -right))
    said = _where(opposite, bad, "Infinities cancel")
    return (Cause.INF_MINUS_INF, said) if said else None


def _product(scene: Scene, eqn: Eqn, inputs: list[Numbers], bad: Numbers) -> Verdict | None:
    left, right = inputs
    said = _where(((left == 0) & np.isinf(right)) | ((right == 0) & np.isinf(left)), bad, "0 is multiplied by inf")
    return (Cause.ZERO_TIMES_INF, said) if said else None


_JUDGES: dict[str, _Judge] = {
    "Log": _log,
    "Log1p": _log,
    "Sqrt": _sqrt,
    "Rsqrt": _sqrt,
    "RealDiv": _quotient,
    "Div": _quotient,
    "Reciprocal": _quotient,
    "Inv": _quotient,
    "Pow": _pow,
    **dict.fromkeys(_DOMAINS, _domain),
    "Cholesky": _cholesky,
    "Mean": _mean,
    **dict.fromkeys(("Exp", "Expm1", "Sinh", "Cosh"), _exp),
    **dict.fromkeys(("Softmax", "LogSoftmax", "SoftmaxCrossEntropyWithLogits"), _softmax),
    **dict.fromkeys(("Sub", "Add", "AddV2"), _difference),
    "Mul": _product,
}
_COUNTS = dict.fromkeys(("RealDiv", "Div", "Pow", "Sub", "Add", "AddV2", "Mul"), 2)  # inputs that a judge reads
