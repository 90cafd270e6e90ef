"""Sum and mean of the gradients."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True)
class Sum(Weighting):
    """Add the gradients up: the gradient of the sum of the losses.

    >>> rt.aggregate.Sum().weights([[1.0, -0.5], [-0.5, 1.0]]).numpy().tolist()
    [1.0, 1.0]
    """

    needs_gramian = False

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        return Solution(tf.ones([problem.size], tf.float64), tf.constant(True))


@dataclass(frozen=True)
class Mean(Weighting):
    """Average the gradients: the gradient of the mean of the losses.

    >>> rt.aggregate.Mean().weights([[1.0, -0.5], [-0.5, 1.0]]).numpy().tolist()
    [0.5, 0.5]
    """

    needs_gramian = False

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        return Solution(tf.fill([problem.size], tf.constant(1.0 / problem.size, tf.float64)), tf.constant(True))
