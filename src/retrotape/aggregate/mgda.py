"""MGDA: the shortest convex combination of the gradients."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape.aggregate._preference import preference_of
from retrotape.aggregate._solve import Problem, Solution, shortest
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True)
class MGDA(Weighting):
    """Take the shortest convex combination of the gradients: none of the losses grows along it.

    Désidéri, Multiple-gradient descent algorithm (MGDA) for multiobjective optimization, 2012 (Comptes Rendus
    Mathématique 350); for neural networks: Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization, 2018
    (arXiv:1810.04650).

    It is zero if a gradient is zero, which then has all the weight, or if gradients point in opposite directions.
    Weights are exact, not those of some steps of Frank-Wolfe; where several are, as for equal gradients, they are any
    of them.

    >>> rt.aggregate.MGDA().weights([[1.0, 0.0], [0.0, 4.0]]).numpy().round(6).tolist()
    [0.8, 0.2]
    """

    uses_nnls = True
    fallback = "its result is the mean"

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        found = shortest(problem.gramian[None], problem.precision)
        return Solution(
            tf.where(found.converged[0], found.values[0], preference_of(None, problem.size)), found.converged[0]
        )
