"""Products and dots of gradients, dense or sparse, that higher derivatives are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape._tf import tf

Tensor = Any


def dot(grads: Sequence[Any], vectors: Sequence[Tensor]) -> Tensor | None:
    """Return the sum of the products of gradients and vectors; None where there is no gradient at all."""
    terms = [_dot(grad, vector) for grad, vector in zip(grads, vectors, strict=True) if grad is not None]
    return tf.add_n(terms) if terms else None


def _dot(grad: Any, vector: Tensor) -> Tensor:
    if isinstance(grad, tf.IndexedSlices):
        return tf.reduce_sum(grad.values * tf.gather(vector, grad.indices))
    return tf.reduce_sum(grad * vector)
