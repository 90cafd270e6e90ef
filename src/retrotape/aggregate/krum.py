"""Krum: the gradients that are closest to others."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._weighting import Weighting
from retrotape.errors import ShapeMismatchError
from retrotape.tf.core import tf


@dataclass(frozen=True)
class Krum(Weighting):
    """Take the gradient that is closest to most others, or the mean of a few such gradients.

    Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
    2017 (arXiv:1703.02757).

    Of m gradients, f of which may be wrong, each is judged by its squared distances to the m - f - 2 nearest others.
    Equal ones are taken in the order of the losses.

    Args:
      byzantine: How many gradients may be wrong: f.
      selected: How many of the best ones to average.
      squared: Whether to add up squared distances, as the paper does, or distances, as TorchJD does.

    >>> w = tf.Variable([1.0, 1.0])
    >>> with rt.Tape() as tape:
    ...     losses = [w[0], 1.1 * w[0], 0.9 * w[0], -50.0 * w[1]]
    >>> rt.aggregate.Krum(1)(tape.backward_each(losses))[w].numpy().tolist()
    [1.0, 0.0]
    """

    byzantine: int = 1
    selected: int = 1
    squared: bool = True

    needs_exact = True

    def __post_init__(self) -> None:
        if self.byzantine < 0:
            raise ValueError(
                f"byzantine= takes a number of gradients, 0 or more, got {self.byzantine}: `Krum(byzantine=1)`."
            )
        if self.selected < 1:
            raise ValueError(
                f"selected= takes a number of gradients, 1 or more, got {self.selected}: `Krum(selected=1)`."
            )

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        size, fewest = problem.size, max(self.byzantine + 3, self.selected)
        if size < fewest:
            raise ShapeMismatchError(
                f"Got {size} losses; with byzantine={self.byzantine} and selected={self.selected}, Krum takes "
                f"{fewest} or more. {self._remedy(size)}"
            )
        squares = tf.linalg.diag_part(problem.gramian)
        sums = squares[:, None] + squares[None, :]
        distances = sums - 2.0 * problem.gramian
        noise = 4.0 * problem.precision * sums  # equal gradients have distance zero
        distances = tf.where(distances > noise, distances, tf.zeros_like(distances))
        nearest = tf.sort(distances if self.squared else tf.sqrt(distances), axis=1)  # the first is a row itself
        scores = tf.reduce_sum(nearest[:, 1 : size - self.byzantine - 1], 1)
        _, best = tf.math.top_k(-scores, self.selected)
        return Solution(tf.reduce_sum(tf.one_hot(best, size, dtype=tf.float64), 0) / self.selected, tf.constant(True))

    def _remedy(self, size: int) -> str:
        """Return what to use for fewer losses than it takes."""
        if size < 3:
            return "Krum compares 3 gradients or more; use `rt.aggregate.Mean()`."
        byzantine, selected = min(self.byzantine, size - 3), min(self.selected, size)
        return f"For {size} losses, use `Krum(byzantine={byzantine}, selected={selected})`."
