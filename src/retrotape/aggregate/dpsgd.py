"""DP-SGD: clipped gradients of examples, plus noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._base import Aggregator, Made, Nonfinite, Parts, refuse_nonfinite
from retrotape.aggregate._columns import Block, Column, block_of
from retrotape.aggregate._combined import Combined
from retrotape.aggregate._dense import dense
from retrotape.aggregate._functions import run
from retrotape.aggregate._random import Randomized
from retrotape.aggregate._replicas import replicas
from retrotape.aggregate._rows import UNKNOWN, Rows
from retrotape.errors import TapeUseError
from retrotape.tf.core import as_is, tf


@dataclass(frozen=True)
class DPSGD(Randomized, Aggregator):
    """Bound the gradient of each example, add them up, add noise, and divide by the expected size of a batch.

    Abadi et al., Deep Learning with Differential Privacy, 2016 (arXiv:1607.00133). The rows are those of single
    examples, `tape.backward_each(losses)` of a vector of losses; all variables count, whether they are shared or not.

    It is the mechanism only. What privacy it gives, an accountant says (`dp-accounting`), for batches that are sampled
    as the accountant assumes: shuffled batches are not Poisson samples. The random numbers are those of TensorFlow,
    which are not made for cryptography. `details["clipped"]`, the share of examples that were bounded, is not private.

    Args:
      clip: The bound for the norm of the gradient of one example.
      noise_multiplier: The standard deviation of the noise in the sum, as a multiple of `clip`.
      expected_batch_size: What the sum is divided by: the sampling rate times the number of examples, not the size of
        this batch, which depends on the data.
      seed: Makes a sequence of draws that is the same in each run, for tests: noise that can be repeated protects
        nothing.

    >>> w = tf.Variable([0.0, 0.0])
    >>> x = tf.constant([[3.0, 4.0]] * 10 + [[0.0, 0.5]] * 10)
    >>> with rt.Tape() as tape:
    ...     losses = tf.linalg.matvec(x, w)
    >>> combined = rt.aggregate.DPSGD(1.0, noise_multiplier=0.0, expected_batch_size=20)(tape.backward_each(losses))
    >>> [round(float(one), 3) for one in combined[w]], float(combined.details["clipped"])
    ([0.3, 0.65], 0.5)
    """

    clip: float
    noise_multiplier: float
    expected_batch_size: float

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allows_zero in (("clip", False), ("noise_multiplier", True), ("expected_batch_size", False)):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not (0.0 if allows_zero else 1e-300) <= value < np.inf:
                least = "zero or more" if allows_zero else "more than zero"
                raise ValueError(f"{name}= takes a number, {least}; got {value!r}.")

    @as_is
    def __call__(
        self, rows: Rows | Sequence[Any], *, shared: Iterable[Any] | None = None, nonfinite: Nonfinite = "raise"
    ) -> Combined:
        """Combine the rows of single examples.

        Args:
          rows: The rows.
          shared: Not taken: all variables count.
          nonfinite: As for other methods.

        Raises:
          TapeUseError: If examples depend on each other by a BatchNormalization layer, or nobody has checked that:
            rows of a vector of losses know it; or in the replicas of a strategy.
        """
        rows = rows if isinstance(rows, Rows) else Rows(rows)
        if shared is not None:
            raise TypeError("DPSGD takes no shared=: the norm of an example is that of all variables together.")
        if rows.mixed_by == UNKNOWN:
            raise TapeUseError(
                "It is not known whether these examples depend on each other, as by a BatchNormalization. Take rows of "
                "a vector of losses, `tape.backward_each(losses)`, which know it; or, if no layer mixes examples, say "
                "so: `rt.Rows.from_stacked(variables, stacked, mixed_by=None)`."
            )
        if rows.mixed_by is not None:
            raise TapeUseError(
                f"The losses of these examples depend on other examples: {rows.mixed_by} was updated, so a "
                "BatchNormalization used the statistics of the batch. Then no bound holds for one example. Use "
                "GroupNormalization or LayerNormalization."
            )
        if replicas() > 1:
            raise TapeUseError(
                "DPSGD bounds each example, and replicas would be summed first. Use it in one replica, or sum the "
                "results of several without noise, and add the noise to the sum."
            )
        rows = dense(rows)
        return super().__call__(rows, shared=[column.key for column in rows.columns()], nonfinite=nonfinite)

    def _combine(self, rows: Rows, parts: Parts, nonfinite: Nonfinite) -> Made:
        count = len(rows)

        def compute(columns: list[Column], others: list[Tensor]) -> Any:
            return self._noisy(list(map(block_of, columns)), count, others[0])

        fine, clipped, grads = run(compute, self._key("noisy", count), parts.shared, [self._next_seed()])
        checks = refuse_nonfinite(fine, tf.reduce_all(fine), rows.names) if nonfinite == "raise" else ()
        return Made(grads, details={"clipped": clipped}, checks=checks)

    def _noisy(self, blocks: Sequence[Block], count: int, seed: Tensor) -> Any:
        squares = tf.add_n([tf.reduce_sum(tf.square(tf.cast(tf.abs(one.values), tf.float64)), 1) for one in blocks])
        norms = tf.sqrt(squares)
        bound = tf.constant(self.clip, tf.float64)
        factors = tf.where(norms > bound, bound / norms, tf.ones_like(norms))
        fine = tf.math.is_finite(norms)
        factors = tf.where(fine, factors, tf.constant(np.nan, tf.float64))
        found = []
        for number, (block, total) in enumerate(zip(blocks, _sums(blocks, factors), strict=True)):
            own = tf.random.experimental.stateless_fold_in(seed, number)
            spread = self.noise_multiplier * self.clip
            noise = tf.random.stateless_normal(tf.shape(total), own, 0.0, spread, total.dtype, alg="philox")
            found.append(block.unflatten((total + noise) / self.expected_batch_size))
        return fine, tf.reduce_mean(tf.cast(norms > bound, tf.float32)), found


def _sums(blocks: Sequence[Block], factors: Tensor) -> list[Tensor]:
    """Return the weighted sums as vectors, which is what noise is added to."""
    return [tf.linalg.matvec(one.values, tf.cast(factors, one.values.dtype), transpose_a=True) for one in blocks]
