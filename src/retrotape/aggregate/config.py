"""ConFIG: the same cosine with all gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrotape.aggregate._eigen import eigen_of
from retrotape.aggregate._preference import freeze_preference, preference_of
from retrotape.aggregate._solve import Problem, Solution, scaled_to_unit
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True)
class ConFIG(Weighting):
    """Take the direction that has the same cosine with each gradient, as long as the sum of projections on it.

    Liu, Chu and Thuerey, ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks, 2024
    (arXiv:2408.11104).

    A gradient that is zero has weight zero. Where gradients depend on each other, cosines are equal in the sense of
    least squares; for opposite ones the result is zero.

    Args:
      preference: What cosines are proportional to; equal by default.

    >>> w = tf.Variable([1.0, 1.0])
    >>> with rt.Tape() as tape:
    ...     losses = [3.0 * w[0], 0.5 * w[1]]
    >>> rt.aggregate.ConFIG()(tape.backward_each(losses))[w].numpy().round(4).tolist()
    [1.75, 1.75]
    """

    preference: Sequence[float] | None = None

    def __post_init__(self) -> None:
        freeze_preference(self)

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        unit, norms = scaled_to_unit(problem.gramian, problem.precision)
        is_row = tf.cast(tf.linalg.diag_part(problem.gramian) > 0.0, tf.float64)
        wanted = preference_of(self.preference, problem.size) * is_row
        found = eigen_of(unit, problem.precision).times(wanted, -1.0)  # of rows of norm one
        cosines = tf.linalg.matvec(unit, found)
        square = tf.reduce_sum(found * cosines)
        length = tf.reduce_sum(norms * is_row * cosines)
        noise = (4.0 * problem.size * problem.precision) ** 2 * tf.reduce_sum(wanted**2)
        factor = tf.where(square > noise, tf.math.divide_no_nan(length, square), tf.zeros_like(square))
        return Solution(factor * found / norms, tf.constant(True))
