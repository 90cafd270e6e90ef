"""IMTL-G: equal projections on all gradients."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape.aggregate._eigen import eigen_of
from retrotape.aggregate._solve import Problem, Solution, scaled_to_unit
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True)
class IMTLG(Weighting):
    """Take the combination that has the same projection on each gradient, with weights that add up to one.

    Liu, Li, Kuang, Xue, Chen, Yang, Liao and Zhang, Towards Impartial Multi-task Learning, 2021 (ICLR).

    Weights may be negative. A gradient that is zero has weight zero. Where gradients depend on each other, projections
    are equal in the sense of least squares; if no combination of them has weights that add up to one, as for opposite
    ones, the result is zero.

    >>> w = tf.Variable([1.0, 1.0])
    >>> with rt.Tape() as tape:
    ...     losses = [3.0 * w[0], w[1]]
    >>> rt.aggregate.IMTLG()(tape.backward_each(losses))[w].numpy().tolist()
    [0.75, 0.75]
    """

    needs_exact = True

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        unit, norms = scaled_to_unit(problem.gramian, problem.precision)
        is_row = tf.cast(tf.linalg.diag_part(problem.gramian) > 0.0, tf.float64)
        of_unit = eigen_of(unit, problem.precision)
        exact = of_unit.times(is_row, -1.0) / norms  # also where norms are very different
        least = eigen_of(problem.gramian, problem.precision).times(norms * is_row, -1.0)
        found = tf.where(of_unit.rank == tf.reduce_sum(is_row), exact, least)
        total = tf.reduce_sum(found)
        noise = 4.0 * problem.size * problem.precision * tf.reduce_sum(tf.abs(found))
        is_zero = tf.abs(total) <= noise
        return Solution(tf.where(is_zero, tf.zeros_like(found), tf.math.divide_no_nan(found, total)), tf.constant(True))
