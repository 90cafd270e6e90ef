"""Reads and updates of variables as functions of values: what they compute, and how to go back.

In a program a variable's value takes the place of its handle, and a write has the new value as its output.
So `AssignAddVariableOp(old, delta) -> new` is an addition, and a derivative runs through it like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrotape._tf import tf

Tensor = Any
Forward = Callable[..., Tensor]


def _nd(indices: Tensor) -> Tensor:
    return indices[..., tf.newaxis]


# New value (or value read) from the inputs: the old value first, except for a plain assignment, which forgets it.
FORWARD: dict[str, Forward] = {
    "ReadVariableOp": lambda value: value,
    "AssignVariableOp": lambda value: value,
    "AssignAddVariableOp": lambda old, delta: old + delta,
    "AssignSubVariableOp": lambda old, delta: old - delta,
    "ResourceScatterAdd": lambda old, at, new: tf.tensor_scatter_nd_add(old, _nd(at), _rows(old, at, new)),
    "ResourceScatterSub": lambda old, at, new: tf.tensor_scatter_nd_sub(old, _nd(at), _rows(old, at, new)),
    "ResourceScatterUpdate": lambda old, at, new: tf.tensor_scatter_nd_update(old, _nd(at), _rows(old, at, new)),
    "ResourceScatterMin": lambda old, at, new: tf.tensor_scatter_nd_min(old, _nd(at), _rows(old, at, new)),
    "ResourceScatterMax": lambda old, at, new: tf.tensor_scatter_nd_max(old, _nd(at), _rows(old, at, new)),
    "ResourceScatterNdAdd": tf.tensor_scatter_nd_add,
    "ResourceScatterNdSub": tf.tensor_scatter_nd_sub,
    "ResourceScatterNdUpdate": tf.tensor_scatter_nd_update,
    "ResourceScatterNdMin": tf.tensor_scatter_nd_min,
    "ResourceScatterNdMax": tf.tensor_scatter_nd_max,
}


def _rows(old: Tensor, at: Tensor, new: Tensor) -> Tensor:
    """Broadcast a scalar update to the rows that it changes, as the resource ops do."""
    return tf.broadcast_to(new, tf.concat([tf.shape(at), tf.shape(old)[1:]], 0))


def negate(grad: Any) -> Any:
    """Return minus a gradient, which may be sparse."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(-grad.values, grad.indices, grad.dense_shape)
    return -grad


def _scatter_add(inputs: Sequence[Tensor], grad: Any) -> list[Any]:
    return [grad, None, tf.gather(tf.convert_to_tensor(grad), inputs[1])]


def _scatter_sub(inputs: Sequence[Tensor], grad: Any) -> list[Any]:
    return [grad, None, -tf.gather(tf.convert_to_tensor(grad), inputs[1])]


# Rules that need no old value, which may never have been read.
BACKWARD: dict[str, Callable[[Sequence[Tensor], Any], list[Any]]] = {
    "ReadVariableOp": lambda inputs, grad: [grad],
    "AssignVariableOp": lambda inputs, grad: [grad],
    "AssignAddVariableOp": lambda inputs, grad: [grad, grad],
    "AssignSubVariableOp": lambda inputs, grad: [grad, negate(grad)],
    "ResourceScatterAdd": _scatter_add,
    "ResourceScatterSub": _scatter_sub,
}


def go_back(op: str, inputs: Sequence[Tensor], grad: Any) -> list[Any]:
    """Return the gradients of the inputs of a read or an update."""
    rule = BACKWARD.get(op)
    if rule is not None:
        return rule(inputs, grad)
    operands = list(inputs)
    with tf.GradientTape() as tape:
        tape.watch([operand for operand in operands if operand.dtype.is_floating or operand.dtype.is_complex])
        value = FORWARD[op](*operands)
    return tape.gradient(value, operands, output_gradients=tf.convert_to_tensor(grad))


def gathered(indices: Tensor, grad: Tensor, shape: Tensor) -> tf.IndexedSlices:
    """Return the gradient of a variable whose rows were looked up: sparse, as the stock tape has it."""
    values = tf.reshape(grad, tf.concat([[-1], shape[1:]], 0))
    return tf.IndexedSlices(values, tf.reshape(indices, [-1]), shape)
