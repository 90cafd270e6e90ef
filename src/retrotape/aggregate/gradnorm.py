"""GradNorm: weights that make losses learn at the same rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._state import Stateful
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(eq=False)
class GradNorm(Stateful, Weighting):
    """Weigh losses so that their gradients have similar norms, longer ones for losses that have fallen less.

    Chen, Badrinarayanan, Lee and Rabinovich, GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep
    Multitask Networks, 2018 (arXiv:1711.02257).

    Weights start at one. Each call takes the current ones, and changes them by a step of gradient descent for the next
    one; then they are scaled so that their mean is one. A weight that would get negative is zero. The weights are those
    of losses: they hold for the variables that only one loss depends on, too. Norms are those of the gradients of
    shared variables; the paper takes the last shared layer, `method(rows, shared=[layer.kernel])`.

    Args:
      alpha: How much longer the gradients of losses should be that have fallen less.
      learning_rate: Of the weights.

    >>> method = rt.aggregate.GradNorm(learning_rate=0.1)
    >>> for _ in range(2):
    ...     weights = method.weights([[1.0, 0.0], [0.0, 4.0]], losses=[1.0, 1.0])
    >>> weights.numpy().round(4).tolist()
    [1.1579, 0.8421]
    """

    alpha: float = 1.5
    learning_rate: float = 0.025

    needs_losses = True
    needs_positive_losses = True
    weighs_own = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.learning_rate > 0.0:
            raise ValueError(
                f"learning_rate= takes a positive number, got {self.learning_rate!r}: `GradNorm(learning_rate=0.025)`."
            )

    def start(self, size: int) -> Mapping[str, np.ndarray]:
        """Return the weights, the losses at the first call, and how many calls there were."""
        return {"loss_weights": np.ones(size), "first_losses": np.ones(size), "calls": np.zeros([], np.int64)}

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        weights, first, calls = problem.state
        assert problem.losses is not None
        first = tf.where(calls == 0, problem.losses, first)
        norms = tf.sqrt(tf.linalg.diag_part(problem.gramian))
        ratios = problem.losses / first
        rates = (ratios / tf.reduce_mean(ratios)) ** self.alpha
        wanted = tf.reduce_mean(weights * norms) * rates
        new = weights - self.learning_rate * tf.sign(weights * norms - wanted) * norms
        new = tf.maximum(new, tf.zeros_like(new))
        total = tf.reduce_sum(new)
        new = tf.where(total > 0.0, problem.size * tf.math.divide_no_nan(new, total), tf.ones_like(new))
        return Solution(weights, tf.constant(True), (new, first, calls + 1))
