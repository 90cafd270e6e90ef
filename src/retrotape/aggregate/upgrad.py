"""UPGrad: each gradient projected on the dual cone, then averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrotape.aggregate._preference import freeze_preference, preference_of
from retrotape.aggregate._solve import Problem, Solution, project, regularized
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True)
class UPGrad(Weighting):
    """Project each gradient so that it conflicts with no loss, and average the projections.

    Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, 2024 (arXiv:2406.16232).

    Args:
      preference: The weight of each projection; equal ones that add up to one by default.
      regularize: What is added to the diagonal of the Gramian, which is divided by its trace first. TorchJD does that,
        with 1e-4; the result then may conflict a little. Zero gives the exact projections.

    >>> w = tf.Variable([1.0, 1.0])
    >>> with rt.Tape() as tape:
    ...     losses = [w[0], w[1] - w[0]]
    >>> rt.aggregate.UPGrad()(tape.backward_each(losses))[w].numpy().tolist()
    [0.25, 0.75]
    """

    preference: Sequence[float] | None = None
    regularize: float = 0.0

    uses_nnls = True

    def __post_init__(self) -> None:
        freeze_preference(self)

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        wanted = tf.linalg.diag(preference_of(self.preference, problem.size))
        found = project(regularized(problem, self.regularize), wanted)
        return Solution(tf.reduce_sum(found.values, 0), tf.reduce_all(found.converged))
