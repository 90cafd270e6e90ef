"""Which gradients are zero but for rounding errors.

The terms of a sum may cancel exactly in mathematics, and to a few rounding errors in floating point: the gradient with
respect to the bias of the keys of an attention layer does, whatever the model. Such a gradient is small, but it does
not vanish: it was never there.

How large the terms are shows when they cannot cancel: the same backward rule, applied to the incoming gradient with
random signs, gives a result of their size. A gradient that is smaller than that by the precision of its dtype is a
rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from retrotape._types import Cotangent, Vjp
from retrotape.execute import Plan
from retrotape.ir import Program
from retrotape.report._stats import stats_of
from retrotape.tf.core import tf

_PASSING = frozenset(("ReadVariableOp", "Identity", "Cast", "Reshape", "ExpandDims", "Squeeze", "Transpose"))
_SUSPECT = 1e-2  # of the norm of the incoming gradient: a larger one has not cancelled
_ERRORS = 64.0  # rounding errors: a sum has many, and those of its terms come on top
_EPSILON = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7, tf.float64: 2.0**-52, tf.complex128: 2.0**-52}


class RoundingErrors:
    """A backward rule that also measures how large rounding errors of the gradients of variables may be.

    Args:
      vjp: The backward rule.
      variables: A key for each value of a variable, by var.
      program: The program that they are in.

    Attributes:
      bounds: By key, how large the norm of a gradient may be that is a rounding error.
    """

    def __init__(self, vjp: Vjp, variables: Mapping[int, int], program: Program) -> None:
        self._vjp = vjp
        self._keys = dict(variables)  # also of the vars that have the same values
        for eqn in program.eqns:
            if eqn.op in _PASSING and eqn.inputs and eqn.inputs[0] in self._keys and eqn.outputs:
                self._keys.setdefault(eqn.outputs[0], self._keys[eqn.inputs[0]])
        self.bounds: dict[int, float] = {}

    def __call__(self, index: int, grads: list[Cotangent | None], plan: Plan) -> Sequence[Cotangent | None]:
        """Return the cotangents of the inputs of an equation."""
        given = list(grads)
        found = self._vjp(index, grads, plan)
        eqn = plan.eqns[index]
        if eqn.op not in _PASSING:
            used = [n for n, var in enumerate(eqn.inputs) if var in self._keys and found[n] is not None]
            if used:
                self._measure(index, given, plan, [(self._keys[eqn.inputs[n]], n, found[n]) for n in used])
        return found

    def _measure(self, index: int, given: list[Any], plan: Plan, found: list[tuple[int, int, Any]]) -> None:
        incoming = math.hypot(*(_norm(grad) for grad in given))
        signed: Sequence[Any] | None = None
        for key, position, grad in found:
            terms = _norm(grad)
            if terms < _SUSPECT * incoming:
                if signed is None:
                    signed = self._vjp(index, [_with_signs(grad, number) for number, grad in enumerate(given)], plan)
                terms = max(terms, _norm(signed[position]))
            bound = _ERRORS * _EPSILON.get(grad.dtype, 2.0**-23) * terms
            self.bounds[key] = self.bounds.get(key, 0.0) + bound


def _norm(grad: Any) -> float:
    stats = stats_of(grad)
    return 0.0 if stats is None else stats.norm


def _with_signs(grad: Any, seed: int) -> Any:
    """Return a gradient with random signs, the same again each time."""
    if grad is None or not (grad.dtype.is_floating or grad.dtype.is_complex):
        return grad
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(_with_signs(grad.values, seed), grad.indices, grad.dense_shape)
    ones = tf.random.stateless_uniform(tf.shape(grad), [seed, 7], 0, 2, tf.int32)
    return grad * tf.cast(2 * ones - 1, grad.dtype)
