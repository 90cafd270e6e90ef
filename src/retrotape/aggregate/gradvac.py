"""GradVac: gradients that are turned towards others until they are as similar as usual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._random import check_seed, fresh_seed, orders
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._state import Stateful
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(eq=False)
class GradVac(Stateful, Weighting):
    """Turn each gradient towards the others, in random order, until their cosines are as large as usual; add them up.

    Wang, Tsvetkov, Firat and Cao, Gradient Vaccine: Investigating and Improving Multi-task Optimization in Massively
    Multilingual Models, 2020 (arXiv:2010.05874).

    What is usual is a moving average of the cosines of each pair, which starts at zero: the first call is `PCGrad`. A
    gradient that is zero has cosine zero with all others.

    Args:
      beta: How much of the moving average the newest cosine is.
      epsilon: What is added to denominators. TorchJD takes 1e-8, which changes the result for small gradients.
      seed: Makes a sequence of orders that is the same in each run; None takes those of `tf.random.set_seed`.

    >>> method = rt.aggregate.GradVac()
    >>> method.weights([[1.0, -0.5], [-0.5, 1.0]]).numpy().tolist()
    [1.5, 1.5]
    >>> method.targets.numpy().tolist()
    [[0.0, -0.25], [-0.25, 0.0]]
    """

    beta: float = 0.5
    epsilon: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta= takes a number between 0 and 1, got {self.beta!r}: `GradVac(beta=0.5)`.")

    def start(self, size: int) -> Mapping[str, np.ndarray]:
        """Return the moving averages, and how many orders were drawn."""
        return {"targets": np.zeros([size, size]), "draws": np.zeros([], np.int64)}

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        targets, draws = problem.state
        seed = problem.seed if self.seed is None else tf.stack([tf.constant(self.seed, tf.int64), draws])
        weights, targets = self.turn(problem.gramian, orders(seed, problem.size), targets)
        return Solution(weights, tf.constant(True), (targets, draws + 1))

    def turn(self, gramian: Tensor, drawn: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the new moving averages for some orders."""
        size = gramian.shape[0]
        norms = tf.sqrt(tf.linalg.diag_part(gramian))

        def towards(place: Tensor, parts: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            other = tf.gather(drawn, place, axis=1)  # for each gradient, the one that is next
            chosen = tf.one_hot(other, size, dtype=tf.float64) * (1.0 - tf.eye(size, dtype=tf.float64))
            products = tf.matmul(parts, gramian)
            norm = tf.sqrt(tf.maximum(tf.reduce_sum(products * parts, 1), tf.zeros([size], tf.float64)))
            length = tf.gather(norms, other)
            cosine = self._ratio(tf.reduce_sum(products * chosen, 1), norm * length)
            target = tf.reduce_sum(targets * chosen, 1)
            side = _sine(target)
            more = self._ratio(norm * (target * _sine(cosine) - cosine * side), length * side)
            more = tf.where(cosine < target, more, tf.zeros_like(more))
            change = self.beta * (cosine - target)
            return place + 1, parts + more[:, None] * chosen, targets + change[:, None] * chosen

        start = tf.constant(0), tf.eye(size, dtype=tf.float64), targets
        _, parts, targets = tf.while_loop(lambda place, *_: place < size, towards, start)
        return tf.reduce_sum(parts, 0), targets

    def _ratio(self, upper: Tensor, lower: Tensor) -> Tensor:
        return tf.math.divide_no_nan(upper, lower + self.epsilon)

    def _next_seed(self) -> Tensor | None:
        return fresh_seed() if self.seed is None else None


def _sine(cosine: Tensor) -> Tensor:
    return tf.sqrt(tf.maximum(1.0 - cosine**2, tf.zeros_like(cosine)))
