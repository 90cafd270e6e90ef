"""Why the gradient of an op is not finite, although its value and the incoming gradient are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retrotape.diagnose.nonfinite._causes import Cause
from retrotape.diagnose.nonfinite._domains import at_places
from retrotape.diagnose.nonfinite._double import Verdict, overflow_backward
from retrotape.diagnose.nonfinite._forward import kind_of
from retrotape.diagnose.nonfinite._scene import Scene, as_numbers
from retrotape.ir import Eqn

_UNKNOWN: Verdict = (Cause.UNKNOWN, "")


def judge_backward(scene: Scene, index: int, given: Sequence[Any], found: Sequence[Any]) -> Verdict:
    """Return why the gradient of equation `index` is not finite; `given` came in, `found` was returned."""
    eqn = scene.eqns[index]
    scene.fetch_around(eqn)
    position, grad = next((k, as_numbers(g)) for k, g in enumerate(found) if kind_of(g))
    if grad is None:
        return _UNKNOWN
    bad = ~np.isfinite(grad)
    plain = _singular(scene, eqn, position, bad)
    arrived = as_numbers(given[0]) if given and given[0] is not None else None
    if arrived is not None and arrived.shape == bad.shape and not arrived[bad].any():
        line = scene.not_taken(eqn.outputs, bad)
        if line is not None:
            first = f"{plain[1]} " if plain is not None else ""
            branch = f"`tf.where` at {line} selects the other branch there"
            return Cause.WHERE, f"{first}{branch}, so the incoming gradient is 0: 0 · inf is NaN."
    return plain or overflow_backward(scene, eqn, given, position) or _UNKNOWN


def _singular(scene: Scene, eqn: Eqn, position: int, bad: np.ndarray) -> Verdict | None:
    """Return which infinite derivative it is, if every non-finite element is at one."""
    x = scene.numbers(eqn.inputs[0])
    if x is None:
        return None
    if eqn.op == "Sqrt":
        said = _holds_at_all(x == 0, bad, "The input is exactly 0")
        return (_kind_of_root(scene, eqn), said) if said else None
    if eqn.op == "Pow" and position == 0:
        power = scene.numbers(eqn.inputs[1])
        said = None if power is None else _holds_at_all((x == 0) & (power < 1), bad, "The base is exactly 0")
        return (Cause.POW_AT_ZERO, said) if said else None
    if eqn.op in ("Acos", "Asin", "Acosh"):
        said = _holds_at_all(np.abs(x) == 1, bad, "The input is at the boundary, 1 or -1,")
        return (Cause.EDGE_OF_DOMAIN, said) if said else None
    if eqn.op == "Atan2":
        other = scene.numbers(eqn.inputs[1])
        said = None if other is None else _holds_at_all((x == 0) & (other == 0), bad, "Both inputs are exactly 0")
        return (Cause.ATAN2_AT_ZERO, said) if said else None
    return None


def _holds_at_all(condition: np.ndarray, bad: np.ndarray, text: str) -> str | None:
    """Return a sentence if a condition holds at every non-finite element.

    After a sum over broadcast axes, positions cannot be compared; then it has to hold somewhere.
    """
    met = condition & bad if condition.shape == bad.shape else condition
    if not met.any() or (condition.shape == bad.shape and not condition[bad].all()):
        return None
    return at_places(text, met)


def _kind_of_root(scene: Scene, eqn: Eqn) -> Cause:
    made = scene.maker(eqn.inputs[0])
    if made is None or made.op not in ("Sum", "Mean"):
        return Cause.SQRT_AT_ZERO
    inner = scene.maker(made.inputs[0])
    squares = inner is not None and _is_square(scene, inner)
    if made.op == "Sum":
        return Cause.NORM_AT_ZERO if squares else Cause.SQRT_AT_ZERO
    deviates = inner is not None and (inner.op == "SquaredDifference" or (squares and _is_deviation(scene, inner)))
    return Cause.DEVIATION_AT_ZERO if deviates else Cause.SQRT_AT_ZERO


def _is_square(scene: Scene, eqn: Eqn) -> bool:
    if eqn.op == "Pow":
        return scene.is_all(eqn.inputs[1], 2.0)
    if eqn.op == "Mul":
        makers = [
            scene.maker(var) for var in eqn.inputs
        ]  # of `x * conj(x)`, where conj is the identity for real numbers
        return eqn.inputs[0] == eqn.inputs[1] or (makers[0] is not None and makers[0] is makers[1])
    return eqn.op == "Square"


def _is_deviation(scene: Scene, square: Eqn) -> bool:
    made = scene.maker(square.inputs[0])
    mean = None if made is None or made.op != "Sub" else scene.maker(made.inputs[1])
    return mean is not None and mean.op == "Mean"
