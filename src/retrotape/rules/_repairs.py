"""Corrections of two second derivatives that TensorFlow gets wrong; first derivatives are unchanged.

`tf.nn.moments`, and with it Keras' BatchNormalization, computes the variance as the mean of
`squared_difference(y, stop_gradient(mean(y)))`. That is right for the first derivative: the part through the
mean is zero. It is wrong for the second, where that part counts. So gradients pass
the `stop_gradient` of `tf.nn.moments`, and no other, where an op other than `squared_difference` uses it, which only a
recorded first derivative has; elsewhere it stops them.

`tf.nn.softmax_cross_entropy_with_logits` gives `softmax - labels` beside the loss, for its first derivative. The rule
for that output omits the labels, which matters where they depend on a source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from retrotape.ir import Equations


def repairable(program: Equations, indices: Sequence[int], stopped: Collection[int]) -> frozenset[int]:
    """Return the vars stopped by `tf.nn.moments` that this derivative has to pass through."""
    if not stopped:
        return frozenset()
    eqns = program.eqns
    return frozenset(
        var
        for index in indices
        for var in eqns[index].inputs
        if var in stopped and eqns[index].op != "SquaredDifference"
    )


def with_labels(rule: Callable) -> Callable:
    """Return the rule of SoftmaxCrossEntropyWithLogits with the part through the labels."""

    def repaired(op: Any, grad_loss: Any, grad_difference: Any) -> tuple[Any, Any]:
        logits, labels = rule(op, grad_loss, grad_difference)
        return logits, labels if grad_difference is None else labels - grad_difference

    return repaired


REPAIRS: dict[str, Callable[[Callable], Callable]] = {"SoftmaxCrossEntropyWithLogits": with_labels}


def has_wrong_second(ops: Collection[str]) -> bool:
    """Return whether one of these ops may be one of the two whose second derivative has to be corrected."""
    return ("StopGradient" in ops and "SquaredDifference" in ops) or "SoftmaxCrossEntropyWithLogits" in ops
