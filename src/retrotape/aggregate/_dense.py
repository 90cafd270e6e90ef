"""Sparse gradients as dense ones."""

from __future__ import annotations

from retrotape._types import Tensor
from retrotape.aggregate._columns import Column
from retrotape.aggregate._rows import Rows
from retrotape.errors import TapeUseError
from retrotape.tf.core import tf


def dense(rows: Rows) -> Rows:
    """Return the rows as dense stacks for all variables: which of them, or which slices, have noise must tell nothing.

    If there are no rows, as a sample may be empty, there is one of zeros, which changes nothing.
    """
    keys = [column.key for column in rows.columns()]
    for key in keys:
        if tf.as_dtype(key.dtype).is_complex:
            raise TapeUseError("DPSGD adds real noise, and a variable is complex. Split it into two real variables.")
    if not keys:
        return rows
    stacks = [_stack(column, len(rows)) for column in rows.columns()]
    return Rows.from_stacked(keys, stacks, rows.names if len(rows) else None)


def _stack(column: Column, count: int) -> Tensor:
    zeros = tf.zeros(column.key.shape, column.key.dtype)
    if count == 0:
        return zeros[None]
    if column.stacked is not None:
        return column.stacked
    return tf.stack([zeros if grad is None else tf.convert_to_tensor(grad) for grad in column.grads])


def dense_column(column: Column) -> Column:
    """Return a column without sparse gradients."""
    grads = tuple(None if grad is None else tf.convert_to_tensor(grad) for grad in column.grads)
    return column._replace(grads=grads)
