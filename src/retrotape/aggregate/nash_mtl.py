"""Nash-MTL: the gradients as players that bargain for a direction."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape.aggregate._bargain import bargain
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True)
class NashMTL(Weighting):
    """Take the direction that losses agree on by Nash bargaining: the product of their gains is largest.

    Navon, Shamsian, Achituve, Maron, Kawaguchi, Chechik and Fetaya, Multi-Task Learning as a Bargaining Game, 2022
    (arXiv:2202.01017).

    The direction does not depend on how losses are scaled. Weights w solve G w = 1 / w, by Newton's method at each
    call. A gradient that is zero has weight zero. If a convex combination of the others is zero, there is nothing to
    agree on: the result is zero, and has `converged` False.

    Args:
      max_norm: The longest result; longer ones are scaled to it. None scales none: of m gradients, the norm is √m.

    >>> rt.aggregate.NashMTL(max_norm=None).weights([[1.0, 0.0], [0.0, 4.0]]).numpy().round(6).tolist()
    [1.0, 0.5]
    """

    max_norm: float | None = 1.0

    fallback = "its result is zero: some convex combination of the gradients is almost zero"

    def __post_init__(self) -> None:
        if self.max_norm is not None and not self.max_norm > 0.0:
            raise ValueError(
                f"max_norm= takes a positive number, got {self.max_norm!r}. For no limit, use `NashMTL(max_norm=None)`."
            )

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        found = bargain(problem, 1.0)
        if self.max_norm is None:
            return found
        square = tf.reduce_sum(found.values * tf.linalg.matvec(problem.gramian, found.values))
        norm = tf.sqrt(tf.maximum(square, tf.zeros_like(square)))
        return found._replace(
            values=found.values * self.max_norm / tf.maximum(norm, tf.cast(self.max_norm, norm.dtype))
        )
