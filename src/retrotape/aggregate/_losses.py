"""The values of losses, for methods that depend on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.aggregate._replicas import replicas
from retrotape.errors import ShapeMismatchError
from retrotape.tf.core import tf


def values_of(losses: Any, count: int, method: str) -> Tensor:
    """Return losses as a vector of float64; in the replicas of a strategy, summed over replicas, as rows are.

    Raises:
      ShapeMismatchError: If there are none, or not as many as rows.
    """
    if losses is None:
        raise ShapeMismatchError(
            f"{method} needs the values of the losses, and there are none. Take rows of `tape.backward_each(losses)`, "
            "or give them: `rt.Rows(gradients, losses=[loss1, loss2])`."
        )
    listed = tf.unstack(losses) if isinstance(losses, (tf.Tensor, tf.Variable)) else losses
    each = [_total(loss) for loss in listed]
    if len(each) != count:
        raise ShapeMismatchError(f"Got {len(each)} values of losses for {count} losses; give one for each.")
    values = tf.stack(each)
    if replicas() > 1:
        values = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
    return values


def _total(loss: Any) -> Tensor:
    return tf.add_n([tf.cast(tf.reduce_sum(part), tf.float64) for part in tf.nest.flatten(loss)])


def check_positive(values: Tensor, names: Sequence[Any], method: str) -> None:
    """Raise if a loss is zero or negative, also inside a graph.

    Raises:
      ValueError: In eager code.
    """
    wrong = values <= 0.0  # NaN is reported with the gradients
    text = f"{method} compares losses by their ratios, so they have to be positive"
    if not tf.executing_eagerly():
        shown = ", ".join(map(str, names))
        tf.debugging.Assert(~tf.reduce_any(wrong), [f"{text}. The losses {shown} are:", values])
        return
    if bool(tf.reduce_any(wrong)):
        shown = ", ".join(f"{name!r} is {value:.4g}" for name, value in zip(names, values.numpy(), strict=True))
        raise ValueError(f"{text}, but {shown}. Add a constant to a loss that can be negative.")
