"""Clipping one gradient, and adding noise to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from retrotape._types import Gradient, Tensor
from retrotape.grads import _sparse as sparse
from retrotape.tf.core import tf


def factor(norm: Tensor, bound: float) -> Tensor:
    """Return the factor that brings a norm down to a bound; 1 where it is below, so that nothing is scaled up."""
    limit = sparse.number(bound, norm.dtype)
    share = tf.where(norm > limit, tf.math.divide_no_nan(limit, norm), tf.ones_like(norm))
    return tf.where(tf.math.is_finite(norm), share, tf.fill(tf.shape(norm), tf.constant(math.nan, norm.dtype)))


def by_norm(grad: Gradient, bound: float) -> Gradient:
    """Bound the norm of one gradient."""
    return sparse.scale(grad, factor(sparse.norm([sparse.square(grad)], [grad.dtype]), bound))


def by_value(grad: Gradient, bound: float) -> Gradient:
    """Bound the size of each element; duplicate rows of a sparse gradient are summed first."""
    grad = sparse.summed(grad) if sparse.is_sparse(grad) else grad
    return sparse.on_values(grad, lambda values: tf.clip_by_value(values, -bound, bound))


BY_KIND: dict[str, Callable[[Gradient, float], Gradient]] = {"norm": by_norm, "value": by_value}


def adaptive(grad: Gradient, key: Any, share: float, epsilon: float = 1e-3) -> Gradient:
    """Bound the norm of each unit by a share of the norm of its weights (adaptive gradient clipping).

    A unit is one index of the last dimension; a vector or a scalar is one unit.
    """
    if grad is None:
        return None
    grad = sparse.summed(grad) if sparse.is_sparse(grad) else grad
    values = grad.values if sparse.is_sparse(grad) else grad
    size, weight = _unit_norm(values), _unit_norm(tf.convert_to_tensor(key))
    bound = sparse.number(share, tf.float64) * tf.maximum(weight, tf.cast(epsilon, tf.float64))
    scale = bound / tf.maximum(size, bound)
    return sparse.on_values(grad, lambda given: tf.cast(tf.cast(given, tf.float64) * scale, given.dtype))


def _unit_norm(value: Tensor) -> Tensor:
    axes = list(range(value.shape.rank - 1)) if value.shape.rank > 1 else None
    return tf.sqrt(tf.reduce_sum(tf.square(tf.cast(value, tf.float64)), axes, keepdims=True))


def noisy(grad: Gradient, stddev: float, seed: int | None, number: int) -> Tensor:
    """Add normal noise, reproducible for a given seed."""
    dense = tf.convert_to_tensor(grad)
    if seed is None:
        return dense + tf.random.normal(tf.shape(dense), stddev=stddev, dtype=dense.dtype)
    return dense + tf.random.stateless_normal(tf.shape(dense), [seed, number], stddev=stddev, dtype=dense.dtype)
