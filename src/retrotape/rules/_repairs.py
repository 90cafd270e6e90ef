"""Two places where TensorFlow has the second derivative wrong, put right; first derivatives are untouched.

`tf.nn.moments`, and with it Keras' BatchNormalization, computes the variance as the mean of
`squared_difference(y, stop_gradient(mean(y)))`. That is right for the first derivative: the part through the
mean is zero. It is wrong for the second, where that part counts. So the `stop_gradient` of `tf.nn.moments`, and no
other, is passed where something else than the `squared_difference` looks at it, which only a recorded first derivative
does, and stops where nothing else does.

`tf.nn.softmax_cross_entropy_with_logits` gives `softmax - labels` beside the loss, for its first derivative. The rule
that goes back from there forgets the labels, which matters where they depend on what is differentiated by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from retrotape.ir import Equations


def repairable(program: Equations, indices: Sequence[int], stopped: Collection[int]) -> frozenset[int]:
    """Return those of the vars that `tf.nn.moments` stopped which this derivative has to pass."""
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
    """Say whether among these ops may be one of the two whose second derivative has to be put right."""
    return ("StopGradient" in ops and "SquaredDifference" in ops) or "SoftmaxCrossEntropyWithLogits" in ops
