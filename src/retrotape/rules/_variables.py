"""Reads and updates of variables as functions of values: what they compute, and their gradients.

In a program a variable's value takes the place of its handle, and a write has the new value as its output.
So `AssignAddVariableOp(old, delta) -> new` is an addition, and is differentiated like any other op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.rules._optimizers import APPLY
from retrotape.tf.core import StockTape, tf

Attrs = Mapping[str, Any]
Forward = Callable[..., "Tensor | tuple[Tensor, ...]"]


def _flat(old: Tensor, at: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return row indices and their new values, flat; a scalar is broadcast, as the resource ops do."""
    rows = tf.broadcast_to(new, tf.concat([tf.shape(at), tf.shape(old)[1:]], 0))
    return tf.reshape(at, [-1, 1]), tf.reshape(rows, tf.concat([[-1], tf.shape(old)[1:]], 0))


def _scatter(scatter: Callable[..., Tensor]) -> Forward:
    """Return the row-wise form of a `tf.tensor_scatter_nd_*`."""
    return lambda attrs, old, at, new: scatter(old, *_flat(old, at, new))


def _overwrite(old: Tensor, at: Tensor, new: Tensor) -> Tensor:
    """Update elements; where an index is listed twice, the last update wins."""
    names = tf.reshape(at, [-1, tf.shape(at)[-1]])
    same = tf.reduce_all(names[:, tf.newaxis] == names, -1)
    later = tf.linalg.band_part(tf.cast(same, tf.int32), 0, -1) - tf.eye(tf.shape(names)[0], dtype=tf.int32)
    last = tf.reduce_max(later, 1) < 1
    values = tf.reshape(new, tf.concat([[-1], tf.shape(old)[tf.shape(at)[-1] :]], 0))
    return tf.tensor_scatter_nd_update(old, tf.boolean_mask(names, last), tf.boolean_mask(values, last))


def _scatter_nd(scatter: Callable[..., Tensor]) -> Forward:
    return lambda attrs, old, at, new: scatter(old, at, new)


def _scatter_by_rows(combine: Callable[[Tensor, Tensor], Tensor]) -> Forward:
    """Combine rows one after the other: the same row may be listed twice."""

    def forward(attrs: Attrs, old: Tensor, at: Tensor, new: Tensor) -> Tensor:
        for index, row in zip(*map(tf.unstack, _flat(old, at, new)), strict=True):
            old = tf.tensor_scatter_nd_update(old, [index], [combine(old[index[0]], row)])
        return old

    return forward


def _strided_slice_assign(attrs: Attrs, old: Tensor, begin: Tensor, end: Tensor, step: Tensor, new: Tensor) -> Tensor:
    return tf.raw_ops.TensorStridedSliceUpdate(
        input=old,
        begin=begin,
        end=end,
        strides=step,
        value=new,
        **{n: v for n, v in attrs.items() if "mask" in n},
    )


# New value (or value read) from the attributes and inputs: the old value first, except for a plain assignment,
# which does not use it.
FORWARD: dict[str, Forward] = {
    "ReadVariableOp": lambda attrs, value: value,
    "AssignVariableOp": lambda attrs, value: value,
    "AssignAddVariableOp": lambda attrs, old, delta: old + delta,
    "AssignSubVariableOp": lambda attrs, old, delta: old - delta,
    "ResourceScatterAdd": _scatter(tf.tensor_scatter_nd_add),
    "ResourceScatterSub": _scatter(tf.tensor_scatter_nd_sub),
    "ResourceScatterUpdate": _scatter(_overwrite),
    "ResourceScatterMin": _scatter(tf.tensor_scatter_nd_min),
    "ResourceScatterMax": _scatter(tf.tensor_scatter_nd_max),
    "ResourceScatterMul": _scatter_by_rows(tf.multiply),
    "ResourceScatterDiv": _scatter_by_rows(tf.divide),
    "ResourceScatterNdAdd": _scatter_nd(tf.tensor_scatter_nd_add),
    "ResourceScatterNdSub": _scatter_nd(tf.tensor_scatter_nd_sub),
    "ResourceScatterNdUpdate": _scatter_nd(_overwrite),
    "ResourceScatterNdMin": _scatter_nd(tf.tensor_scatter_nd_min),
    "ResourceScatterNdMax": _scatter_nd(tf.tensor_scatter_nd_max),
    "ResourceStridedSliceAssign": _strided_slice_assign,
    **APPLY,
}


def new_values(op: str, attrs: Attrs, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the new values of the variables that an update changes."""
    values = FORWARD[op](attrs, *inputs)
    return values if isinstance(values, tuple) else (values,)


def negate(grad: Any) -> Any:
    """Return minus a gradient, which may be sparse."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(-grad.values, grad.indices, grad.dense_shape)
    return -grad


def _of_rows(inputs: Sequence[Tensor], grad: Any) -> Tensor:
    rows = tf.gather(tf.convert_to_tensor(grad), inputs[1])
    return tf.reduce_sum(rows) if inputs[2].shape.rank == 0 and rows.shape.rank != 0 else rows


# Rules that do not use the old value: it may never have been read.
BACKWARD: dict[str, Callable[[Sequence[Tensor], Any], list[Any]]] = {
    "ReadVariableOp": lambda inputs, grad: [grad],
    "AssignVariableOp": lambda inputs, grad: [grad],
    "AssignAddVariableOp": lambda inputs, grad: [grad, grad],
    "AssignSubVariableOp": lambda inputs, grad: [grad, negate(grad)],
    "ResourceScatterAdd": lambda inputs, grad: [grad, None, _of_rows(inputs, grad)],
    "ResourceScatterSub": lambda inputs, grad: [grad, None, -_of_rows(inputs, grad)],
}


def variable_vjp(op: str, attrs: Attrs, inputs: Sequence[Tensor], grads: Sequence[Any]) -> list[Any]:
    """Return the gradients of the inputs of a read or an update, given those of the values that it produced."""
    rule = BACKWARD.get(op)
    if rule is not None:
        return rule(inputs, grads[0])
    operands = list(inputs)
    with StockTape() as tape:
        tape.watch([operand for operand in operands if operand.dtype.is_floating or operand.dtype.is_complex])
        values = new_values(op, attrs, operands)
    seeds = [
        tf.zeros_like(value) if grad is None else tf.convert_to_tensor(grad)
        for value, grad in zip(values, grads, strict=True)
    ]
    return tape.gradient(values, operands, output_gradients=seeds)


def gathered(indices: Tensor, grad: Tensor, shape: Tensor) -> Any:
    """Return the gradient of a variable whose rows were gathered: sparse, as on the stock tape."""
    values = tf.reshape(grad, tf.concat([[-1], shape[1:]], 0))
    return tf.IndexedSlices(values, tf.reshape(indices, [-1]), shape)
