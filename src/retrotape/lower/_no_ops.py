"""Equations that return one of their inputs unchanged, to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrotape.ir import CUSTOM, Eqn, TensorType

UNCHANGED = frozenset((CUSTOM, "Identity", "PreventGradient", "StopGradient"))
FILLS = {"ZerosLike": 0, "OnesLike": 1}
_COMPLEX = (8, 18)  # one times infinity has a part that is not a number
_REDUCTIONS = frozenset(("Sum", "Mean", "Prod", "Max", "Min"))
_RESHAPES = frozenset(("Reshape", "BroadcastTo", "Tile", "Squeeze", "ExpandDims"))


def unchanged_input(
    eqn: Eqn, types: Sequence[TensorType], static: Mapping[int, Any], filled: Mapping[int, int]
) -> int | None:
    """Return the input that an equation returns unchanged; None if it computes something.

    Args:
      eqn: The equation.
      types: The types of vars.
      static: The values of vars that are constants.
      filled: The number that all elements of a var are.
    """
    if not eqn.inputs or len(eqn.outputs) != 1:
        return None
    first, kind = eqn.inputs[0], types[eqn.outputs[0]]
    if types[first] == kind and kind.shape is not None and None not in kind.shape:
        if eqn.op in _RESHAPES or eqn.op == "Cast" or (eqn.op == "AddN" and len(eqn.inputs) == 1):
            return first
        if eqn.op in _REDUCTIONS and eqn.inputs[1] in static and static[eqn.inputs[1]].size == 0:
            return first
        if eqn.op == "Transpose" and eqn.inputs[1] in static and _is_in_order(static[eqn.inputs[1]]):
            return first
    if eqn.op == "Mul" and kind.dtype not in _COMPLEX:
        return _times_one(eqn.inputs, kind, types, static, filled)
    return None


def _is_in_order(permutation: Any) -> bool:
    return permutation.tolist() == list(range(permutation.size))


def _times_one(
    inputs: Sequence[int],
    kind: TensorType,
    types: Sequence[TensorType],
    static: Mapping[int, Any],
    filled: Mapping[int, int],
) -> int | None:
    for one, other in (inputs, inputs[::-1]):
        is_one = filled.get(one) == 1 or (one in static and static[one].size > 0 and bool((static[one] == 1).all()))
        if is_one and types[other] == kind and kind.shape is not None and None not in kind.shape:
            return other
    return None
