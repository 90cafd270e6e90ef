"""Rows in the replicas of a strategy."""

from __future__ import annotations

from collections.abc import Sequence

from retrotape.aggregate._columns import Column
from retrotape.tf.core import tf


def replicas() -> int:
    """Return how many replicas run this code side by side; one outside of `strategy.run`."""
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return 1
    return tf.distribute.get_replica_context().num_replicas_in_sync


def sum_over_replicas(columns: Sequence[Column]) -> list[Column]:
    """Return the columns summed over replicas: all of them have the same rows afterwards."""
    here = tf.distribute.get_replica_context()
    found = []
    for column in columns:
        dense = [None if grad is None else tf.convert_to_tensor(grad) for grad in column.grads]
        there = [grad for grad in dense if grad is not None]
        total = here.all_reduce(tf.distribute.ReduceOp.SUM, column.stacked if column.stacked is not None else there)
        if column.stacked is not None:
            found.append(column._replace(stacked=total))
            continue
        rest = iter(total)
        found.append(column._replace(grads=tuple(None if grad is None else next(rest) for grad in dense)))
    return found
