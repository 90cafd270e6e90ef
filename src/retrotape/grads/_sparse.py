"""Arithmetic on one gradient, which may be dense, sparse (`tf.IndexedSlices`) or missing (None, the zero vector)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from retrotape._types import Gradient, Tensor
from retrotape.errors import ShapeMismatchError
from retrotape.tf.core import CompositeTensor, tf

_COMPLEX = (tf.complex64, tf.complex128)


def is_sparse(grad: Gradient) -> bool:
    """Return whether a gradient is a `tf.IndexedSlices`."""
    return isinstance(grad, tf.IndexedSlices)


def summed(grad: tf.IndexedSlices) -> tf.IndexedSlices:
    """Return the same gradient with duplicate rows summed.

    >>> rows = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 0, 3]), tf.constant([5, 1]))
    >>> summed(rows).indices.numpy().tolist(), summed(rows).values.numpy().tolist()
    ([3, 0], [[5.0], [2.0]])
    """
    unique, places = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, places, tf.size(unique))
    return tf.IndexedSlices(values, unique, grad.dense_shape)


def values_of(grad: Gradient) -> Tensor:
    """Return the stored elements, duplicate rows summed: the values that norms are taken of."""
    return summed(grad).values if is_sparse(grad) else grad


def wide(dtype: Any) -> Any:
    """Return the dtype to compute in: half precision overflows in norms, sums and products."""
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def common(*dtypes: Any) -> Any:
    """Return the smallest dtype that holds all of these; float32 if there are none.

    >>> common(tf.float16, tf.bfloat16).name, common(tf.float64, tf.complex64).name
    ('float32', 'complex128')
    """
    kinds = set(dtypes) or {tf.float32}
    if len(kinds) == 1:
        return kinds.pop()
    double = not kinds.isdisjoint((tf.float64, tf.complex128))
    if any(dtype.is_complex for dtype in kinds):
        return tf.complex128 if double else tf.complex64
    return tf.float64 if double else tf.float32


def add(left: Gradient, right: Gradient) -> Gradient:
    """Return the sum; two sparse gradients stay sparse, and two dtypes are promoted to one that holds both."""
    if left is None or right is None:
        return right if left is None else left
    if left.dtype != right.dtype:
        dtype = common(left.dtype, right.dtype)
        left, right = cast(left, dtype), cast(right, dtype)
    if is_sparse(left) and is_sparse(right):
        indices = [left.indices, tf.cast(right.indices, left.indices.dtype)]
        return tf.IndexedSlices(tf.concat([left.values, right.values], 0), tf.concat(indices, 0), left.dense_shape)
    return tf.convert_to_tensor(left) + tf.convert_to_tensor(right)


def number(value: Any, dtype: Any) -> Tensor:
    """Return a number as a tensor; TensorFlow would convert a Python float to single precision."""
    wide_types = {float: np.float64, complex: np.complex128}
    return tf.cast(wide_types.get(type(value), lambda same: same)(value), dtype)


def scale(grad: Gradient, factor: Any) -> Gradient:
    """Return the gradient times a number."""
    if not grad.dtype.is_complex and (isinstance(factor, complex) or getattr(factor, "dtype", None) in _COMPLEX):
        raise TypeError(
            f"Got the complex factor {factor!r} for a gradient of dtype {grad.dtype.name}; take a real one."
        )
    if len(getattr(factor, "shape", ())):
        raise ShapeMismatchError(
            f"Gradients are scaled by a number, got a factor of shape {tuple(factor.shape)}. To scale each gradient "
            "separately use `map`."
        )

    def scaled(values: Tensor) -> Tensor:
        dtype = wide(values.dtype)
        return tf.cast(tf.cast(values, dtype) * number(factor, dtype), values.dtype)

    return on_values(grad, scaled)


def cast(grad: Gradient, dtype: Any) -> Gradient:
    """Return the gradient in another dtype; the real part where a complex gradient is cast to a real dtype."""
    dtype = tf.as_dtype(dtype)  # Keras variables hold its name

    def converted(values: Tensor) -> Tensor:
        real = values.dtype.is_complex and not dtype.is_complex
        return tf.cast(tf.math.real(values) if real else values, dtype)

    return on_values(grad, converted)


def on_values(grad: Gradient, function: Any) -> Gradient:
    """Apply a function that maps zero to zero; sparse gradients stay sparse."""
    if grad is None:
        return None
    if is_sparse(grad):
        return tf.IndexedSlices(function(grad.values), grad.indices, grad.dense_shape)
    return function(grad)


def elements(grad: Gradient) -> Tensor:
    """Return the stored elements as a vector in double precision, of complex ones the magnitudes.

    >>> elements(tf.constant([[3.0 + 4.0j]])).numpy().tolist()
    [5.0]
    """
    values = values_of(grad)
    if isinstance(values, CompositeTensor):  # ragged or sparse: its values, without the indices
        parts = tf.nest.flatten(values, expand_composites=True)
        values = next(part for part in parts if part.dtype.is_floating or part.dtype.is_complex)
    values = tf.reshape(values, [-1])
    return tf.abs(tf.cast(values, tf.complex128)) if values.dtype.is_complex else tf.cast(values, tf.float64)


def count_nonfinite(elements: Tensor) -> int:
    """Return how many elements are infinite or not a number."""
    return int(tf.math.count_nonzero(~tf.math.is_finite(elements)))


def square(grad: Gradient) -> Tensor:
    """Return the squared norm, in double precision: squares may overflow single precision."""
    values = values_of(grad)
    dtype = tf.complex128 if values.dtype.is_complex else tf.float64
    return tf.reduce_sum(tf.square(tf.abs(tf.cast(values, dtype))))


def norm(squares: list[Tensor], dtypes: Iterable[Any]) -> Tensor:
    """Return the root of a sum of squared norms, in the precision of the gradients."""
    if not squares:
        return tf.constant(0.0)
    wanted = common(*(wide(dtype) for dtype in dtypes)).real_dtype
    return tf.cast(tf.sqrt(tf.add_n(squares)), wanted)


def is_finite(grad: Gradient) -> Tensor:
    """Return whether no element is infinite or not a number."""
    values = values_of(grad)
    parts = [tf.math.real(values), tf.math.imag(values)] if values.dtype.is_complex else [values]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in parts])


def dot(left: Gradient, right: Gradient) -> Tensor | None:
    """Return the inner product, without densifying a sparse gradient; the real part of it for complex ones."""
    if left is None or right is None:
        return None
    dtype = wide(common(left.dtype, right.dtype))
    left, right = cast(left, dtype), cast(right, dtype)
    if is_sparse(left) and is_sparse(right):
        return _dot_of_rows(left, right)
    if is_sparse(right):
        left, right = right, left
    if is_sparse(left):
        return _product(left.values, tf.gather(right, left.indices))
    return _product(left, right)


def _dot_of_rows(left: tf.IndexedSlices, right: tf.IndexedSlices) -> Tensor:
    indices = tf.concat([left.indices, tf.cast(right.indices, left.indices.dtype)], 0)
    unique, places = tf.unique(indices)
    split = tf.size(left.indices)
    ours = tf.math.unsorted_segment_sum(left.values, places[:split], tf.size(unique))
    theirs = tf.math.unsorted_segment_sum(right.values, places[split:], tf.size(unique))
    return _product(ours, theirs)


def _product(left: Tensor, right: Tensor) -> Tensor:
    if left.dtype.is_complex:
        return tf.reduce_sum(tf.math.real(tf.math.conj(left) * right))
    return tf.reduce_sum(left * right)
