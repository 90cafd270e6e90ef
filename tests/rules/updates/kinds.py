"""Every kind of update of one variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import retrotape as rt
from rules.updates.tools import START, WHOLE, Arrays, differences, or_zeros, read_out


class Update(NamedTuple):
    apply: Callable[[tf.Variable, tf.Tensor], Any]
    operand: Any  # the value of `x`

    def run(self, start: np.ndarray, x: np.ndarray) -> float:
        variable = tf.Variable(start)
        self.apply(variable, tf.constant(x))
        return float(read_out(variable))

    def expected(self) -> Arrays:
        at = {"start": START, "x": np.asarray(self.operand)}
        return differences(lambda values: self.run(**values), at)


def slices(x: tf.Tensor, rows: list[int]) -> tf.IndexedSlices:
    return tf.IndexedSlices(x, tf.constant(rows))


PAIR = np.array([[0.3, -0.8], [1.2, 2.5]])
TRIPLE = np.array([[0.3, -0.8], [1.2, 2.5], [0.6, 1.7]])
UPDATES = {
    "assign": Update(lambda v, x: v.assign(x * x), WHOLE),
    "assign_of_itself": Update(lambda v, x: v.assign(v * v * x), WHOLE),
    "assign_add": Update(lambda v, x: v.assign_add(x * v), WHOLE),
    "assign_sub": Update(lambda v, x: v.assign_sub(tf.exp(x)), WHOLE),
    "scatter_add": Update(lambda v, x: v.scatter_add(slices(x, [2, 0])), PAIR),
    "scatter_add_repeated": Update(lambda v, x: v.scatter_add(slices(x * x, [2, 0, 2])), TRIPLE),
    "scatter_sub": Update(lambda v, x: v.scatter_sub(slices(x, [1, 0])), PAIR),
    "scatter_sub_repeated": Update(lambda v, x: v.scatter_sub(slices(x * v[0], [1, 1])), PAIR),
    "scatter_update": Update(lambda v, x: v.scatter_update(slices(x, [2, 0])), PAIR),
    "scatter_update_scalar": Update(
        lambda v, x: tf.raw_ops.ResourceScatterUpdate(resource=v.handle, indices=[2, 0], updates=x), 0.4
    ),
    "scatter_add_scalar": Update(
        lambda v, x: tf.raw_ops.ResourceScatterAdd(resource=v.handle, indices=[2, 0], updates=x), 0.4
    ),
    "scatter_mul_scalar": Update(
        lambda v, x: tf.raw_ops.ResourceScatterMul(resource=v.handle, indices=[2, 0], updates=x), 0.4
    ),
    "scatter_update_one_row": Update(
        lambda v, x: tf.raw_ops.ResourceScatterUpdate(resource=v.handle, indices=1, updates=x), [0.4, 0.7]
    ),
    "scatter_mul": Update(lambda v, x: v.scatter_mul(slices(x, [2, 0])), PAIR),
    "scatter_mul_repeated": Update(lambda v, x: v.scatter_mul(slices(x, [2, 0, 2])), TRIPLE),
    "scatter_div": Update(lambda v, x: v.scatter_div(slices(x, [1, 0])), PAIR),
    "scatter_div_repeated": Update(lambda v, x: v.scatter_div(slices(x, [1, 0, 1])), TRIPLE),
    "scatter_min": Update(lambda v, x: v.scatter_min(slices(x, [2, 0])), PAIR),
    "scatter_min_repeated": Update(lambda v, x: v.scatter_min(slices(x, [0, 1, 0])), TRIPLE),
    "scatter_max": Update(lambda v, x: v.scatter_max(slices(x, [2, 0])), PAIR),
    "scatter_max_repeated": Update(lambda v, x: v.scatter_max(slices(x, [2, 0, 2])), TRIPLE),
    "scatter_nd_add": Update(lambda v, x: v.scatter_nd_add([[0, 1], [2, 0], [0, 1]], x), [0.3, 1.2, -0.6]),
    "scatter_nd_sub": Update(lambda v, x: v.scatter_nd_sub([[0, 1], [2, 0], [2, 0]], x), [0.3, 1.2, -0.6]),
    "scatter_nd_update": Update(lambda v, x: v.scatter_nd_update([[0, 1], [2, 0]], x), [0.3, 1.2]),
    "scatter_nd_min": Update(lambda v, x: v.scatter_nd_min([[0, 1], [2, 0]], x), [0.3, 1.2]),
    "scatter_nd_max": Update(lambda v, x: v.scatter_nd_max([[0, 1], [2, 0]], x), [2.3, -2.2]),
    "scatter_nd_of_rows": Update(lambda v, x: v.scatter_nd_update([[2], [0]], x), PAIR),
    "batch_scatter_update": Update(
        lambda v, x: v.batch_scatter_update(tf.IndexedSlices(x, tf.constant([[1], [0], [1]]))),
        [[0.2], [-0.7], [1.4]],
    ),
    "slice": Update(lambda v, x: v[1:].assign(x), PAIR),
    "slice_of_itself": Update(lambda v, x: v[:2].assign(x * v[1:]), PAIR),
    "slice_with_step": Update(lambda v, x: v[::2, 1].assign(x), [0.4, -0.6]),
    "slice_backwards": Update(lambda v, x: v[::-1].assign(x), WHOLE),
    "slice_with_ellipsis": Update(lambda v, x: v[..., 0].assign(x), [0.4, -0.6, 1.1]),
    "slice_of_one_element": Update(lambda v, x: v[1, 0].assign(x), 0.4),
    "two_after_another": Update(lambda v, x: (v.assign_add(x), v.assign(v * v)), WHOLE),
}


def check_update(update: Update, apply: Callable[[tf.Variable, tf.Tensor], Any], keep: str) -> rt.Tape:
    """Run an update inside a block and compare values and derivatives with what TensorFlow computes."""
    variable, x = tf.Variable(START), tf.constant(update.operand, tf.float64)
    with rt.Tape(keep=keep) as tape:
        apply(variable, x)
        y = read_out(variable)
    np.testing.assert_array_equal(tape.versions(variable)[0].numpy(), START)
    np.testing.assert_allclose(tape.versions(variable)[-1].numpy(), variable.numpy(), rtol=1e-14)
    found = tape.gradient(y, {"start": variable, "x": x}, through_updates=True)
    entry = tape.gradient(y, tape.at(variable, 0))
    for name, wanted in update.expected().items():
        np.testing.assert_allclose(or_zeros(found[name], wanted), wanted, rtol=1e-7, atol=1e-8, err_msg=name)
    np.testing.assert_array_equal(or_zeros(entry, START), or_zeros(found["start"], START))
    return tape
