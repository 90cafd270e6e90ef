"""PCGrad: gradients without what conflicts with others."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape._types import Tensor
from retrotape.aggregate._random import RandomWeighting, orders
from retrotape.aggregate._solve import Problem, Solution
from retrotape.tf.core import tf


@dataclass(frozen=True)
class PCGrad(RandomWeighting):
    """Take from each gradient what conflicts with another one, one after the other in random order; then add them up.

    Yu, Kumar, Gupta, Levine, Hausman and Finn, Gradient Surgery for Multi-Task Learning, 2020 (arXiv:2001.06782).

    With two losses the order does not matter, and the result conflicts with none. With more it may conflict.

    Args:
      seed: Makes a sequence of orders that is the same in each run; None takes those of `tf.random.set_seed`.

    >>> rt.aggregate.PCGrad().weights([[1.0, -0.5], [-0.5, 1.0]]).numpy().tolist()
    [1.5, 1.5]
    """

    def draw(self, seed: Tensor, size: int) -> Tensor:
        """Return an order of the losses for each loss."""
        return orders(seed, size)

    def weigh(self, problem: Problem, drawn: Tensor) -> Solution:
        """Return the weights for some orders."""
        gramian, size = problem.gramian, problem.size
        squares = tf.linalg.diag_part(gramian)

        def subtract(place: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
            other = tf.gather(drawn, place, axis=1)  # for each gradient, the one that is next
            products = tf.reduce_sum(parts * tf.gather(gramian, other), 1)
            shares = tf.math.divide_no_nan(tf.minimum(products, tf.zeros_like(products)), tf.gather(squares, other))
            shares = tf.where(other == tf.range(size), tf.zeros_like(shares), shares)
            return place + 1, parts - shares[:, None] * tf.one_hot(other, size, dtype=tf.float64)

        start = tf.constant(0), tf.eye(size, dtype=tf.float64)  # what each gradient is made of
        _, parts = tf.while_loop(lambda place, _: place < size, subtract, start)
        return Solution(tf.reduce_sum(parts, 0), tf.constant(True))
