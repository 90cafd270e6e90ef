"""The mean without the largest and smallest numbers."""

from __future__ import annotations

from dataclasses import dataclass

from retrotape._types import Tensor
from retrotape.aggregate._coordinatewise import Coordinatewise
from retrotape.errors import ShapeMismatchError
from retrotape.tf.core import tf


@dataclass(frozen=True)
class TrimmedMean(Coordinatewise):
    """Average, in each coordinate, the numbers without the largest and the smallest ones.

    Yin, Chen, Kannan and Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, 2018
    (arXiv:1803.01498).

    Args:
      trim: How many of the largest to leave out, and as many of the smallest.

    >>> w = tf.Variable(1.0)
    >>> with rt.Tape() as tape:
    ...     losses = [w, 3.0 * w, 500.0 * w]
    >>> float(rt.aggregate.TrimmedMean(1)(tape.backward_each(losses))[w])
    3.0
    """

    trim: int = 1

    def __post_init__(self) -> None:
        if self.trim < 0:
            raise ValueError(f"trim= takes a number of gradients, 0 or more, got {self.trim}: `TrimmedMean(trim=1)`.")

    def combine(self, values: Tensor, seed: Tensor | None) -> Tensor:
        """Return the means."""
        count = values.shape[0]
        if count < 2 * self.trim + 1:
            raise ShapeMismatchError(
                f"Got {count} losses; TrimmedMean(trim={self.trim}) leaves out {2 * self.trim} and takes "
                f"{2 * self.trim + 1} or more. For {count} losses, use `TrimmedMean(trim={(count - 1) // 2})`."
            )
        return tf.reduce_mean(tf.sort(values, axis=0)[self.trim : count - self.trim], 0)
