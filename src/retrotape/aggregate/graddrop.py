"""GradDrop: in each coordinate, gradients of one sign only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrotape._types import Tensor
from retrotape.aggregate._coordinatewise import Coordinatewise
from retrotape.aggregate._preference import freeze_preference
from retrotape.aggregate._random import Randomized, uniform
from retrotape.errors import ShapeMismatchError
from retrotape.tf.core import tf


@dataclass(frozen=True)
class GradDrop(Randomized, Coordinatewise):
    """Keep, in each coordinate, only the positive or only the negative numbers, at random; then add them up.

    Chen, Ngiam, Huang, Luong, Kretzschmar, Chai and Anguelov, Just Pick a Sign: Optimizing Deep Multitask Models with
    Gradient Sign Dropout, 2020 (arXiv:2010.06808).

    Positive ones are kept with the probability that is their share in the sum of sizes.

    Args:
      leak: For each loss, the share of its gradient that is always kept; zero by default.
      seed: Makes a sequence of draws that is the same in each run; None takes that of `tf.random.set_seed`.

    >>> w = tf.Variable([1.0, 1.0])
    >>> with rt.Tape() as tape:
    ...     losses = [w[0] + w[1], 2.0 * w[0] - w[1]]
    >>> found = rt.aggregate.GradDrop()(tape.backward_each(losses))[w].numpy().tolist()
    >>> found in ([3.0, 1.0], [3.0, -1.0])
    True
    """

    leak: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        freeze_preference(self, "leak")
        if self.leak is not None and not all(0.0 <= share <= 1.0 for share in self.leak):
            raise ValueError(
                f"leak= takes shares between 0 and 1, one for each loss, got {list(self.leak)}: "
                "`GradDrop(leak=[0.0, 0.5])`."
            )

    def combine(self, values: Tensor, seed: Tensor | None) -> Tensor:
        """Return the sums."""
        assert seed is not None
        return self.keep(values, uniform(seed, tf.shape(values)[1:], values.dtype))

    def keep(self, values: Tensor, drawn: Tensor) -> Tensor:
        """Return the sums that follow from a random number between zero and one for each coordinate."""
        sizes = tf.reduce_sum(tf.abs(values), 0)
        positive = 0.5 * (1.0 + tf.math.divide_no_nan(tf.reduce_sum(values, 0), sizes))
        kept = ((positive > drawn) & (values > 0.0)) | ((positive < drawn) & (values < 0.0))
        kept = tf.cast(kept, values.dtype)
        leak = self._leak(values)
        return tf.reduce_sum((leak + (1.0 - leak) * kept) * values, 0)

    def _leak(self, values: Tensor) -> Tensor:
        count = values.shape[0]
        if self.leak is not None and len(self.leak) != count:
            raise ShapeMismatchError(f"Got leak= of {len(self.leak)} numbers for {count} losses; give one for each.")
        return tf.constant(self.leak or [0.0] * count, values.dtype)[:, None]
