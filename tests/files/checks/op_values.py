"""Values for hostile cases."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import tensorflow as tf

from retrotape.ir import DTYPE_NUMBERS, DType

RESOURCE, VARIANT, STRING = (DTYPE_NUMBERS[name] for name in ("resource", "variant", "string"))


def hostile_value(rng: Random, dtype: int, shape: tuple[int, ...], size: int, wild: bool) -> Any:
    """Return a value: mostly an ordinary one, else of what kernels may not expect; `size` is a likely number."""
    if dtype in (VARIANT, RESOURCE):
        return rng.randrange(5)
    if dtype == STRING:
        texts = (b"", b"a", b"abc", b"1.5", b"-7", b"\xff\x00", b"x" * 900, b"(a*)*b", b"\xc3\x9f", b"%s %d {}")
        return np.array([rng.choice(texts) for _ in range(int(np.prod(shape)))], object).reshape(shape)
    kind, draws = tf.as_dtype(dtype), np.random.default_rng(rng.randrange(2**32))
    numpy = kind.as_numpy_dtype
    if kind.is_bool:
        return draws.integers(0, 2, shape).astype(bool)
    if kind.is_integer or kind.is_quantized:
        return _integers(rng, numpy, shape, draws, size, wild)
    plain = draws.normal(size=shape)
    how = rng.random()
    if how < (0.6 if wild else 0.1):
        odd = (np.nan, np.inf, -np.inf, 0.0, -1.0, 1e30, -1e30, 1e-40, 1e9, 3.0)
        plain = draws.choice(odd, size=shape) if rng.random() < 0.7 else np.full(shape, rng.choice(odd))
    elif how < 0.3:
        plain = np.abs(plain)
    with np.errstate(all="ignore"):
        if kind.is_complex:
            plain = plain + 1j * draws.normal(size=shape)
        return np.asarray(plain).astype(numpy)


def _integers(rng: Random, numpy: Any, shape: tuple[int, ...], draws: Any, size: int, wild: bool) -> Any:
    try:
        low, high = int(np.iinfo(numpy).min), int(np.iinfo(numpy).max)
    except ValueError:  # quantised, or of four bits
        low, high = 0, 7
    count = int(np.prod(shape))
    styles = [
        lambda: draws.integers(0, 3, count),
        lambda: np.arange(count),
        lambda: np.full(count, size),
        lambda: draws.integers(-1, 4, count),
        lambda: np.zeros(count),
        lambda: np.ones(count),
        lambda: np.sort(draws.integers(0, 3, count)),
        lambda: draws.choice((1, 2, 2, 4, 8), count),
    ]
    extremes = [low, high, -1, 0, 1, 2**16, 2**20, 2**28, 2**31 - 1, -7, 100]
    found = [int(number) for number in rng.choice(styles)()]
    if wild and rng.random() < 0.6:
        found = [rng.choice(extremes) for _ in range(count)]
    elif wild and count:
        found[rng.randrange(count)] = rng.choice(extremes)
    return np.array([min(max(number, low), high) for number in found], numpy).reshape(shape)


def list_maker(which: int, leaf: Any) -> tuple[str, Any, tuple[int, ...]]:
    """Return what makes a list or an optional value: op, attributes, and the vars that `leaf` makes of values."""
    kinds = (("element_dtype", DType(1)), ("shape_type", DType(3)))
    i4 = np.int32
    match which:
        case 0:
            return "EmptyTensorList", kinds, (leaf(3, i4(-1)), leaf(3, i4(5)))
        case 1:
            return "TensorListReserve", kinds, (leaf(3, np.array([2], i4)), leaf(3, i4(3)))
        case 2:
            return "TensorListReserve", kinds, (leaf(3, i4(-1)), leaf(3, i4(3)))
        case 3:
            given = leaf(1, np.ones((3, 2), np.float32))
            return "TensorListFromTensor", kinds, (given, leaf(3, np.array([2], i4)))
    return "OptionalFromValue", (("Toutput_types", (DType(1),)),), (leaf(1, np.ones(3, np.float32)),)
