"""Random gradients, dense, sparse, missing and of mixed precision, and what they are as plain arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import retrotape as rt
from laws import examples

# Small integers: every sum and product below is exact, in float16 too, so that laws hold without tolerance.
few = settings(examples.few, max_examples=12)
many = settings(few, max_examples=25, derandomize=False)
LAWS: list[tuple[Callable, tuple]] = []


def law(*strategies: Any) -> Callable[[Callable], Callable]:
    """Hold a law against a few examples, and, in a slow test, against many."""

    def register(function: Callable) -> Callable:
        LAWS.append((function, strategies))
        return few(given(*strategies)(function))

    return register


TYPES = {
    "kernel": ((3, 2), tf.float32),
    "scalar": ((), tf.float32),
    "table": ((5, 2), tf.float32),
    "half": ((4,), tf.float16),
    "half_table": ((3, 2), tf.float16),
    "brain": ((2, 2), tf.bfloat16),
    "brain_table": ((3, 1), tf.bfloat16),
    "double": ((2,), tf.float64),
    "complex": ((2,), tf.complex64),
}
KEYS = {name: tf.Variable(tf.zeros(shape, dtype), name=name) for name, (shape, dtype) in TYPES.items()}
WIDE = [key for key in KEYS.values() if key.dtype == tf.float32]
NESTS = [  # ways to name some of the keys
    [],
    KEYS["kernel"],
    {"trunk": [KEYS["kernel"], KEYS["half"]], "rest": {"table": KEYS["table"]}},
    (KEYS["complex"], [KEYS["double"], (KEYS["brain_table"],)]),
    list(KEYS.values()),
]
scalars = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])


def sparse(ids: list[int], values: Any, key: tf.Variable) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(values, key.dtype), tf.constant(ids), tf.constant(key.shape.as_list()))


def drawn(key: tf.Variable, kind: str, seed: int) -> Any:
    random = np.random.default_rng(seed)
    if kind == "missing":
        return None
    if kind == "dense":
        values = random.integers(-4, 5, size=key.shape)
        return tf.cast(
            values + 1j * random.integers(-4, 5, size=key.shape) if key.dtype.is_complex else values, key.dtype
        )
    if kind == "narrow":  # a gradient in less than the precision of its key, as mixed precision has it
        return tf.cast(random.integers(-4, 5, size=key.shape), [tf.float16, tf.bfloat16][seed % 2])
    count = int(random.integers(1, 7))  # more rows than the table has: some are named twice
    ids = random.integers(0, key.shape[0], size=count).tolist()
    return sparse(ids, random.integers(-4, 5, size=(count, *key.shape[1:])), key)


@st.composite
def vectors(draw: st.DrawFn, tables: tuple[str, ...] = ("dense", "sparse", "missing")) -> rt.Gradients:
    kinds = {name: draw(st.sampled_from(tables if "table" in name else ("dense", "dense", "missing"))) for name in KEYS}
    kinds["kernel"] = draw(st.sampled_from(("dense", "narrow", "missing")))
    return rt.Gradients(
        [(KEYS[name], drawn(KEYS[name], kind, draw(st.integers(0, 999)))) for name, kind in kinds.items()]
    )


def dense(grads: rt.Gradients) -> np.ndarray:
    """Return the reference: one dense vector over every key, in double precision."""
    parts = [
        tf.cast(tf.convert_to_tensor(grads[key]), tf.complex128).numpy() if key in grads else np.zeros(key.shape)
        for key in KEYS.values()
    ]
    return np.concatenate([part.ravel() for part in parts])


def dot(left: rt.Gradients, right: rt.Gradients) -> float:
    """Return the inner product of the references; of complex numbers, that of pairs of real ones."""
    return float(np.vdot(dense(left), dense(right)).real)


def same(left: rt.Gradients, right: rt.Gradients | np.ndarray) -> None:
    np.testing.assert_array_equal(dense(left), right if isinstance(right, np.ndarray) else dense(right))
