"""CAGrad: near the average, where the loss that gains least gains most."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape.aggregate._conflict_averse import conflict_averse
from retrotape.aggregate._preference import preference_of
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True)
class CAGrad(Weighting):
    """Take, of the directions around the average gradient, the one along which the loss that falls least falls most.

    Liu, Liu, Jin, Stone and Liu, Conflict-Averse Gradient Descent for Multi-task Learning, 2021 (arXiv:2110.14048).

    Gradients that are zero count in the average, but not among the losses that fall. If a convex combination of the
    others is zero, and some direction near the average conflicts with none of them, the result is the one closest to
    the average.

    Args:
      c: How far directions may be from the average, as a share of its norm. Zero is gradient descent on the average.

    >>> rt.aggregate.CAGrad(c=0.5).weights([[1.0, 0.0], [0.0, 4.0]]).numpy().round(4).tolist()
    [1.059, 0.5]
    """

    c: float = 0.5

    uses_nnls = True
    fallback = "its result is the mean"

    def __post_init__(self) -> None:
        if not self.c >= 0.0:
            raise ValueError(f"c= takes a number, 0 or more, got {self.c!r}: `CAGrad(c=0.5)`.")

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        mean = preference_of(None, problem.size)
        if self.c == 0.0:
            return Solution(mean, tf.constant(True))
        average = tf.reduce_mean(problem.gramian)
        noise = problem.size * problem.precision * tf.reduce_max(tf.linalg.diag_part(problem.gramian))
        is_zero = average <= noise  # also the average of opposite gradients
        safe = tf.where(is_zero, tf.eye(problem.size, dtype=tf.float64), problem.gramian)
        found = conflict_averse(problem._replace(gramian=safe), self.c)
        return Solution(tf.where(is_zero | ~found.converged, mean, found.values), found.converged | is_zero)
