"""Random weights."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape._types import Tensor
from retrotape.aggregate._random import RandomWeighting
from retrotape.aggregate._solve import Problem, Solution
from retrotape.tf.core import tf


@dataclass(frozen=True)
class Random(RandomWeighting):
    """Average the gradients with random weights: the softmax of normal numbers, drawn at each call.

    Lin, Ye, Zhang and Tsang, Reasonable Effectiveness of Random Weighting, 2021 (arXiv:2111.10603).

    Args:
      seed: Makes a sequence of weights that is the same in each run; None takes that of `tf.random.set_seed`.

    >>> float(tf.reduce_sum(rt.aggregate.Random(seed=1).weights([[1.0, -0.5], [-0.5, 1.0]])).numpy().round(6))
    1.0
    """

    needs_gramian = False

    def draw(self, seed: Tensor, size: int) -> Tensor:
        """Return a normal number for each loss."""
        return tf.random.stateless_normal([size], seed, dtype=tf.float64, alg="philox")

    def weigh(self, problem: Problem, drawn: Tensor) -> Solution:
        """Return the weights for some numbers."""
        return Solution(tf.nn.softmax(drawn), tf.constant(True))
