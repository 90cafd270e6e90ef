"""DualProj: the average of the gradients, projected on the dual cone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrotape.aggregate._preference import freeze_preference, preference_of
from retrotape.aggregate._solve import Problem, Solution, project, regularized
from retrotape.aggregate._weighting import Weighting


@dataclass(frozen=True)
class DualProj(Weighting):
    """Average the gradients, and project the average so that it conflicts with no loss.

    Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning, 2017 (arXiv:1706.08840).

    Where no loss conflicts with the average, the result is the average.

    Args:
      preference: The weight of each gradient in the average; equal ones that add up to one by default.
      regularize: What is added to the diagonal of the Gramian, which is divided by its trace first. TorchJD does that,
        with 1e-4; the result then may conflict a little. Zero gives the exact projection.

    >>> w = tf.Variable([1.0, 1.0])
    >>> with rt.Tape() as tape:
    ...     losses = [w[0], w[1] - 3.0 * w[0]]
    >>> rt.aggregate.DualProj()(tape.backward_each(losses))[w].numpy().tolist()
    [0.0, 0.5]
    """

    preference: Sequence[float] | None = None
    regularize: float = 0.0

    uses_nnls = True

    def __post_init__(self) -> None:
        freeze_preference(self)

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        wanted = preference_of(self.preference, problem.size)
        found = project(regularized(problem, self.regularize), wanted[None, :])
        return Solution(found.values[0], found.converged[0])
