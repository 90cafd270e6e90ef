"""Aligned-MTL: gradients that are orthogonal and equally long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from retrotape._types import Tensor
from retrotape.aggregate._eigen import Eigen, eigen_of
from retrotape.aggregate._preference import freeze_preference, preference_of
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True)
class AlignedMTL(Weighting):
    """Make the gradients orthogonal and equally long, as close to what they are as possible; then average them.

    Senushkin, Patakin, Kuznetsov and Konushin, Independent Component Alignment for Multi-Task Learning, 2023
    (arXiv:2305.19000).

    Eigenvalues that differ from zero only by rounding are left out. If all gradients are zero, weights are the
    preferences.

    Args:
      preference: The weight of each gradient in the average; equal ones that add up to one by default.
      scale: How long gradients become: as the smallest singular value that is not zero ("min"), the median one, or the
        root of their mean square ("rmse").

    >>> w = tf.Variable([1.0, 1.0])
    >>> with rt.Tape() as tape:
    ...     losses = [3.0 * w[0], 0.5 * w[1]]
    >>> rt.aggregate.AlignedMTL()(tape.backward_each(losses))[w].numpy().round(4).tolist()
    [0.25, 0.25]
    """

    preference: Sequence[float] | None = None
    scale: Literal["min", "median", "rmse"] = "min"

    needs_exact = True

    def __post_init__(self) -> None:
        freeze_preference(self)
        if self.scale not in ("min", "median", "rmse"):
            raise ValueError(f"scale= must be 'min', 'median' or 'rmse', got {self.scale!r}.")

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        wanted = preference_of(self.preference, problem.size)
        eigen = eigen_of(problem.gramian, problem.precision)
        found = tf.sqrt(self._square(eigen)) * eigen.times(wanted, -0.5)
        return Solution(tf.where(eigen.rank > 0.0, found, wanted), tf.constant(True))

    def _square(self, eigen: Eigen) -> Tensor:
        """Return the square of how long gradients become; values that are left out come first."""
        if self.scale == "rmse":
            return tf.math.divide_no_nan(tf.reduce_sum(eigen.values * eigen.kept), eigen.rank)
        size, rank = eigen.values.shape[0], tf.cast(eigen.rank, tf.int32)
        first = size - rank
        place = first if self.scale == "min" else first + (rank - 1) // 2  # the lower one of two in the middle
        return tf.gather(eigen.values, tf.clip_by_value(place, 0, size - 1))
