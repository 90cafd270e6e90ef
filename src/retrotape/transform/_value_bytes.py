"""The value of a tensor as bytes, to compare it by a digest."""

from __future__ import annotations

import numpy as np

from retrotape._types import Tensor


def value_bytes(value: Tensor) -> bytes:
    """Return bytes that are the same for two tensors of one dtype and shape if, and only if, their values are."""
    if value.dtype.name != "string":
        found: bytes = value.numpy().tobytes()
        return found
    strings = np.asarray(value.numpy(), dtype=object)  # of a scalar, `numpy()` is the string; an array holds pointers
    return repr(strings.tolist()).encode()
