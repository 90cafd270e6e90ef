"""FairGrad: gains that are fair by a chosen measure."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape.aggregate._bargain import bargain
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._weighting import Weighting


@dataclass(frozen=True)
class FairGrad(Weighting):
    """Take the direction whose gains for the losses are fair, in the sense of alpha-fairness.

    Ban and Ji, Fair Resource Allocation in Multi-Task Learning, 2024 (arXiv:2402.15638).

    Weights w solve G w = w^(-1/alpha), by Newton's method. A gradient that is zero has weight zero. If a convex
    combination of the others is zero, no direction is fair: the result is zero, and has `converged` False.

    Args:
      alpha: The measure: 1 makes the product of gains largest, as `NashMTL` does, 2 the sum of -1/gain least; the
        larger, the more it counts how little the losses gain that gain least.

    >>> rt.aggregate.FairGrad(alpha=2.0).weights([[1.0, 0.0], [0.0, 8.0]]).numpy().round(6).tolist()
    [1.0, 0.25]
    """

    alpha: float = 1.0

    fallback = "its result is zero: some convex combination of the gradients is almost zero"

    def __post_init__(self) -> None:
        if not self.alpha > 0.0:
            raise ValueError(f"alpha= takes a positive number, got {self.alpha!r}: `FairGrad(alpha=1.0)`.")

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        return bargain(problem, 1.0 / self.alpha)
