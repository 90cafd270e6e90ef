"""Methods that combine the gradients coordinate by coordinate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._base import Aggregator, Made, Nonfinite, Parts, finite_rows, refuse_nonfinite
from retrotape.aggregate._columns import Block, Column, block_of
from retrotape.aggregate._functions import run
from retrotape.aggregate._rows import Rows
from retrotape.errors import ShapeMismatchError
from retrotape.tf.core import tf


class Coordinatewise(Aggregator):
    """A method that makes each number of the result of the numbers in the same place; it has no weights.

    A method of your own defines `combine`. It has to be hashable by its parameters, as a frozen dataclass is.

    >>> class Median(rt.aggregate.Coordinatewise):
    ...     def combine(self, values, seed):
    ...         return tf.sort(values, axis=0)[values.shape[0] // 2]
    >>> w = tf.Variable([1.0, 2.0])
    >>> with rt.Tape() as tape:
    ...     losses = [4.0 * w[0], 2.0 * w[1], w[0] + w[1]]
    >>> Median()(tape.backward_each(losses))[w].numpy().tolist()
    [1.0, 1.0]
    """

    @abstractmethod
    def combine(self, values: Tensor, seed: Tensor | None) -> Tensor:
        """Return the result for a matrix of numbers, with one row for each loss; `seed` is None unless it is random."""

    def _next_seed(self) -> Tensor | None:
        """Return two integers to draw random numbers from."""
        return None

    def _combine(self, rows: Rows, parts: Parts, nonfinite: Nonfinite) -> Made:
        seed = self._next_seed()
        count = len(rows)

        def compute(columns: list[Column], others: list[Tensor]) -> Any:
            blocks = list(map(block_of, columns))
            is_finite = finite_rows(blocks, count)
            return is_finite, self._results(blocks, tf.reduce_all(is_finite), *others)

        others = [] if seed is None else [seed]
        is_finite, grads = run(compute, (self._key(), "coordinatewise", count), parts.shared, others)
        if nonfinite == "raise":
            refuse_nonfinite(is_finite, rows.names)
        return Made(grads)

    def _results(self, blocks: Sequence[Block], fine: Tensor, seed: Tensor | None = None) -> list[Any]:
        found = []
        for number, block in enumerate(blocks):
            if block.dtype.is_complex:
                raise ShapeMismatchError(
                    f"{type(self).__name__} compares numbers, and a gradient has dtype {block.dtype.name}. Combine "
                    "complex gradients with a method that has weights, such as UPGrad."
                )
            own = None if seed is None else tf.random.experimental.stateless_fold_in(seed, number)
            values = self.combine(block.values, own)
            found.append(block.unflatten(tf.where(fine, values, tf.constant(np.nan, values.dtype))))
        return found
