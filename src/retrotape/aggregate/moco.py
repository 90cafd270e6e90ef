"""MoCo: MGDA, a step at a time, on moving averages of the gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._base import (
    Aggregator,
    Made,
    Nonfinite,
    Parts,
    all_finite,
    finite_rows,
    refuse_nonfinite,
    weighted_sums,
)
from retrotape.aggregate._columns import Block, Column, block_of, exact_gramian
from retrotape.aggregate._dense import dense_column
from retrotape.aggregate._functions import run
from retrotape.aggregate._rows import Rows
from retrotape.aggregate._solve import on_simplex
from retrotape.aggregate._state import Stateful, make_variable
from retrotape.errors import MethodStateError
from retrotape.grads import identities_of, name_of, sparse
from retrotape.tf.core import tf


@dataclass(eq=False)
class MoCo(Stateful, Aggregator):
    """Follow the shortest convex combination of the gradients: of moving averages, with weights that change slowly.

    Fernando, Shen, Liu, Chaudhury, Murugesan and Chen, Mitigating Gradient Bias in Multi-objective Learning: A Provably
    Convergent Approach, 2023 (arXiv:2210.12624).

    Each call moves the averages towards the gradients, then the weights by a step down the squared norm of their
    combination, and back onto the simplex. The result is made of the averages, which start as the first gradients; the
    weights are in `details`. The averages take as much memory as the gradients of all losses, those of sparse gradients
    as much as dense ones. They belong to the variables that were shared at the first call.

    Args:
      beta: How far averages move towards the gradients.
      gamma: The step of the weights.
      rho: What is added to the diagonal of the Gramian for that step: it keeps weights apart from zero and one.
      decay: In the k-th call, beta and gamma are divided by k to this power.

    >>> method, w = rt.aggregate.MoCo(gamma=0.25), tf.Variable([1.0, 1.0])
    >>> with rt.Tape() as tape:
    ...     losses = [w[0], 2.0 * w[1]]
    >>> combined = method(tape.backward_each(losses))
    >>> combined.details["weights"].numpy().tolist(), combined[w].numpy().tolist()
    ([0.6875, 0.3125], [0.6875, 0.625])
    """

    beta: float = 0.5
    gamma: float = 0.1
    rho: float = 0.0
    decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tracked = _Tracked()
        if not 0.0 < self.beta <= 1.0:
            raise ValueError(f"beta= takes a number above 0, and 1 at most, got {self.beta!r}.")
        if not self.gamma > 0.0:
            raise ValueError(f"gamma= takes a positive number, got {self.gamma!r}.")

    def start(self, size: int) -> Mapping[str, np.ndarray]:
        """Return the weights, and how many calls there were."""
        return {"loss_weights": np.full(size, 1.0 / size), "calls": np.zeros([], np.int64)}

    def _combine(self, rows: Rows, parts: Parts, nonfinite: Nonfinite) -> Made:
        columns = [dense_column(column) for column in parts.shared]
        self.build(len(rows))
        averages = self._averages_of(columns, len(rows))

        size, own = len(columns), parts.own if nonfinite == "raise" else []

        def compute(columns: list[Column], others: list[Tensor]) -> Any:
            blocks = [block_of(column) for column in columns[:size]]
            return self._step(blocks, finite_rows(blocks, columns[size:], len(rows)), others[0], others[1], others[2:])

        given = [self.loss_weights.read_value(), self.calls.read_value(), *(one.read_value() for one in averages)]
        kind = self._key("averaged", len(rows), size)
        rows_fine, is_fine, weights, calls, moved, grads = run(compute, kind, [*columns, *own], given)
        checks = refuse_nonfinite(rows_fine, is_fine, rows.names) if nonfinite == "raise" else ()
        self._write([weights, calls])
        for variable, value in zip(averages, moved, strict=True):
            variable.assign(value)
        return Made(grads, details={"weights": weights}, checks=checks)

    def _averages_of(self, columns: Sequence[Column], count: int) -> list[Any]:
        """Return the variable that has the moving average of each column; make them all at the first call."""
        if not self._tracked.keys:
            self._tracked.keys = tuple(column.key for column in columns)
            self.averages = [make_variable(_zeros(column, count), "average") for column in columns]
        known = dict(zip(identities_of(self._tracked.keys), self.averages, strict=True))
        wanted = identities_of(column.key for column in columns)
        if set(wanted) != set(known):
            tracked = ", ".join(map(name_of, self._tracked.keys))
            raise MethodStateError(
                f"This MoCo has moving averages for {tracked}, and the shared variables are now "
                f"{', '.join(name_of(column.key) for column in columns)}. Make a new one for them, or tell which are "
                "shared: `method(rows, shared=variables)`."
            )
        return [known[identity] for identity in wanted]

    def _step(
        self, blocks: Sequence[Block], rows_fine: Tensor, weights: Tensor, calls: Tensor, averages: Sequence[Tensor]
    ) -> Any:
        """Return which rows are finite, if all is, the new weights, calls and averages, and the gradients."""
        fine = tf.reduce_all(rows_fine)
        slower = tf.cast(calls + 1, tf.float64) ** self.decay
        share = tf.where(calls == 0, tf.ones([], tf.float64), self.beta / slower)
        moved = [
            block._replace(values=average + tf.cast(share, average.dtype) * (block.values - average))
            for block, average in zip(blocks, averages, strict=True)
        ]
        slope = tf.linalg.matvec(exact_gramian(moved, weights.shape[0]), weights) + self.rho * weights
        new = on_simplex(tf.where(fine, weights - self.gamma / slower * slope, weights))
        grads = weighted_sums(moved, tf.where(fine, new, tf.constant(np.nan, tf.float64)))
        kept = [tf.where(fine, block.values, old) for block, old in zip(moved, averages, strict=True)]
        return rows_fine, fine & all_finite(grads), new, tf.where(fine, calls + 1, calls), kept, grads


class _Tracked:
    """The variables whose gradients are averaged: not state, so TensorFlow must not look into it."""

    def __init__(self) -> None:
        self.keys: tuple[Any, ...] = ()


def _zeros(column: Column, count: int) -> np.ndarray:
    """Return where the moving average of a column starts."""
    there = [grad for grad in column.grads if grad is not None] if column.stacked is None else [column.stacked[0]]
    dtype = sparse.wide(sparse.common(*(grad.dtype for grad in there)))
    return np.zeros([count, int(np.prod(there[0].shape))], dtype.as_numpy_dtype)
