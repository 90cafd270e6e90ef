"""Weights that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrotape.aggregate._preference import freeze_preference, preference_of
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True)
class Weighted(Weighting):
    """Average the gradients with given weights, which are divided by their sum.

    Args:
      preference: How much each loss counts; not negative, and not all zero.

    >>> rt.aggregate.Weighted([3.0, 1.0]).weights([[1.0, -0.5], [-0.5, 1.0]]).numpy().tolist()
    [0.75, 0.25]
    """

    preference: Sequence[float]

    needs_gramian = False

    def __post_init__(self) -> None:
        freeze_preference(self)
        if min(self.preference) < 0.0 or sum(self.preference) == 0.0:
            raise ValueError(
                f"Weighted takes weights that are not negative, and not all zero, got {list(self.preference)}. For "
                "weights of any sign, as they are: `rt.aggregate.Constant(weights)`."
            )

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        given = preference_of(self.preference, problem.size)
        return Solution(given / tf.reduce_sum(given), tf.constant(True))


@dataclass(frozen=True)
class Constant(Weighting):
    """Add the gradients up, times given weights.

    Args:
      preference: The weight of each loss.

    >>> rt.aggregate.Constant([3.0, 1.0]).weights([[1.0, -0.5], [-0.5, 1.0]]).numpy().tolist()
    [3.0, 1.0]
    """

    preference: Sequence[float]

    needs_gramian = False

    def __post_init__(self) -> None:
        freeze_preference(self)

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        return Solution(preference_of(self.preference, problem.size), tf.constant(True))
