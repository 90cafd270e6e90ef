"""Compare what a compiled function returns with what was computed op by op."""

from __future__ import annotations

from typing import Any

import numpy as np

from retrotape._types import Cotangent
from retrotape.lower._observed import NotCompilableError
from retrotape.tf.buffers import memory_of
from retrotape.tf.core import tf

TOLERANCE = 1e-6  # relative to the largest element; only kernels that differ need it


def check_same(one: Cotangent | None, other: Cotangent | None) -> None:
    """Raise `NotCompilableError` if two results differ."""
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        check_same(one.values, other.values)
        check_same(one.indices, other.indices)
    elif one is not None and not (one.shape == other.shape and _is_same(one, other)):  # type: ignore[union-attr]
        raise NotCompilableError("as a function of TensorFlow, it gives other numbers")


def _has_same_bytes(one: Any, other: Any) -> bool:
    """Return whether two tensors are the same to the bit; False if they cannot be read without a copy."""
    try:
        left, right = memory_of(one), memory_of(other)
    except (TypeError, ValueError, BufferError):
        return False
    return bool(np.array_equal(left, right))


def _is_same(one: Any, other: Any) -> bool:
    if one.dtype in (tf.variant, tf.resource):
        return True
    if _has_same_bytes(one, other):  # as a rule; the rest takes several times the memory
        return True
    if not (one.dtype.is_floating or one.dtype.is_complex):
        return bool(np.array_equal(one.numpy(), other.numpy()))
    left, right = (tf.cast(tensor, tf.complex128).numpy() for tensor in (one, other))
    finite = np.abs(left[np.isfinite(left)])
    scale = float(finite.max()) if finite.size else 0.0
    return bool(np.allclose(left, right, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True))
