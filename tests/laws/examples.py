"""Functions of two vectors, numbers in general position, and few of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import retrotape as rt

# The same examples on every machine, and few: each one records and differentiates.
few = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # numbers in general position have no simpler form
    suppress_health_check=list(HealthCheck),
)
seeds = st.integers(0, 2**31)
vectors = seeds.map(lambda seed: tf.constant(np.random.default_rng(seed).normal(size=3), tf.float64))
matrices = seeds.map(lambda seed: tf.constant(np.random.default_rng(seed).normal(size=(3, 3)), tf.float64))
MATRIX = tf.constant([[0.6, -1.2, 0.3], [0.5, 0.8, -0.7], [-0.4, 0.9, 1.1]], tf.float64)


def product(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.tanh(tf.linalg.matvec(MATRIX, x)) * y**2 * x)


def chain(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    hidden = tf.exp(-tf.square(x[0] * y)) + tf.sin(x) * y[1]
    return tf.math.log(1.0 + tf.reduce_sum(hidden**2))


def softmax(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.nn.log_softmax(x * y) * tf.cos(y)) + tf.reduce_logsumexp(x)


def sharing(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    outer = x[:, None] * y[None, :]
    return tf.reduce_sum(tf.sigmoid(outer @ MATRIX) * tf.transpose(outer)) + x[1] ** 3 * y[2]


FUNCTIONS: dict[str, Callable] = {f.__name__: f for f in (product, chain, softmax, sharing)}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def record(f: Callable, *sources: tf.Tensor) -> tuple[rt.Tape, tf.Tensor]:
    with rt.Tape() as tape:
        target = f(*sources)
    return tape, target


def close(found: Any, wanted: Any, rtol: float = 1e-9, atol: float = 1e-9) -> None:
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def tensors(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.tanh(x[:, None] * y[None, :]) @ MATRIX + tf.cumsum(x * y)


X, Y = tf.constant([0.3, -0.8, 1.1], tf.float64), tf.constant([0.9, 0.4, -0.6], tf.float64)
