"""Dot products of dense or sparse gradients with vectors, for higher derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.tf.core import tf


def dot(grads: Sequence[Any], vectors: Sequence[Tensor]) -> Tensor | None:
    """Return the sum of the products of gradients and vectors; None if every gradient is None."""
    terms = [_dot(grad, vector) for grad, vector in zip(grads, vectors, strict=True) if grad is not None]
    return tf.add_n(terms) if terms else None


def _dot(grad: Any, vector: Tensor) -> Tensor:
    if isinstance(grad, tf.IndexedSlices):
        return _dot(grad.values, tf.gather(vector, grad.indices))
    if grad.dtype.is_complex:  # treated as pairs of real numbers
        return tf.reduce_sum(tf.math.real(tf.math.conj(grad) * vector))
    return tf.reduce_sum(grad * vector)
