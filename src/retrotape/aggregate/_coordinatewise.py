"""Methods that combine the gradients coordinate by coordinate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._base import Aggregator, Made, Nonfinite, Parts, all_finite, finite_rows, refuse_nonfinite
from retrotape.aggregate._columns import Block, Column, block_of
from retrotape.aggregate._functions import run
from retrotape.aggregate._rows import Rows
from retrotape.errors import ShapeMismatchError
from retrotape.tf.core import tf


class Coordinatewise(Aggregator):
    """A method that makes each number of the result of the numbers in the same place; it has no weights.

    A method of your own defines `combine`. In eager code it runs op by op, as it may read anything.

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
        count, size = len(rows), len(parts.shared)
        own = parts.own if nonfinite == "raise" else []

        def compute(columns: list[Column], others: list[Tensor]) -> Any:
            blocks = list(map(block_of, columns[:size]))
            rows_fine = finite_rows(blocks, columns[size:], count)
            grads = self._results(blocks, tf.reduce_all(rows_fine), *others)
            return rows_fine, tf.reduce_all(rows_fine) & all_finite(grads), grads

        others = [] if seed is None else [seed]
        kind = self._key("coordinatewise", count, size)
        rows_fine, is_fine, grads = run(compute, kind, [*parts.shared, *own], others)
        return Made(grads, checks=refuse_nonfinite(rows_fine, is_fine, rows.names) if nonfinite == "raise" else ())

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
