"""Two places where TensorFlow has the second derivative wrong, put right; first derivatives are untouched.

`tf.nn.moments`, and with it Keras' BatchNormalization, computes the variance as the mean of
`squared_difference(y, stop_gradient(mean(y)))`. That is right for the first derivative: the part through the
mean is zero. It is wrong for the second, where that part counts. So a `stop_gradient` in this pattern is passed
where something else than the `squared_difference` looks at it, which is what a recorded first derivative does, and
stops where nothing else does.

`tf.nn.softmax_cross_entropy_with_logits` gives `softmax - labels` beside the loss, for its first derivative. The rule
that goes back from there forgets the labels, which matters where they depend on what is differentiated by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrotape.ir import Eqn, Equations


def repairable(program: Equations, indices: Sequence[int]) -> frozenset[int]:
    """Return the outputs of those `stop_gradient`s among the equations that this derivative has to pass."""
    eqns, producers = program.eqns, program.producers
    centers: dict[int, int] = {}  # stopped mean → what it is the mean of
    for index in indices:
        eqn = eqns[index]
        if eqn.op == "StopGradient":
            producer = producers[eqn.inputs[0]]
            if producer >= 0 and eqns[producer].op == "Mean":
                centers[eqn.outputs[0]] = eqns[producer].inputs[0]
    if not centers:
        return frozenset()
    looked_at = {
        var
        for index in indices
        for var in centers.keys() & set(eqns[index].inputs)
        if not _is_variance(eqns[index], var, centers)
    }
    squared = {var for eqn in eqns for var in looked_at & set(eqn.inputs) if _is_variance(eqn, var, centers)}
    return frozenset(squared)


def _is_variance(eqn: Eqn, var: int, centers: dict[int, int]) -> bool:
    return eqn.op == "SquaredDifference" and set(eqn.inputs) == {var, centers[var]}


def with_labels(rule: Callable) -> Callable:
    """Return the rule of SoftmaxCrossEntropyWithLogits with the part through the labels."""

    def repaired(op: Any, grad_loss: Any, grad_difference: Any) -> tuple[Any, Any]:
        logits, labels = rule(op, grad_loss, grad_difference)
        return logits, labels if grad_difference is None else labels - grad_difference

    return repaired


REPAIRS: dict[str, Callable[[Callable], Callable]] = {"SoftmaxCrossEntropyWithLogits": with_labels}
