"""Custom gradients that follow each other, whatever is kept: second derivatives against nested stock tapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


@tf.custom_gradient
def one(x: Any) -> Any:
    return tf.tanh(x), lambda d: d * (1 - tf.tanh(x) ** 2)


@tf.custom_gradient
def around(x: Any) -> Any:
    return one(x) * 2.0, lambda d: d * 2.0 * (1 - one(x) ** 2)


CHAINS = {
    "one": lambda x: one(x),
    "two": lambda x: one(one(x)),
    "three": lambda x: one(one(one(x))),
    "with ops between": lambda x: one(tf.sin(one(x)) * x),
    "nested": lambda x: around(around(x)),
    "both": lambda x: one(around(one(x))),
}


def right(chain: Any, x: tf.Tensor) -> np.ndarray:
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(chain(x))
        first = inner.gradient(y, x)
    return outer.gradient(first, x).numpy()


@pytest.mark.parametrize("keep", ["needed", "all", "leaves", "segments", "disk"])
@pytest.mark.parametrize("name", CHAINS)
def test_second_derivatives(name: str, keep: Any) -> None:
    x = tf.constant([0.5, -0.3])
    with rt.Tape(keep=keep) as tape:
        y = tf.reduce_sum(CHAINS[name](x))
    wanted = right(CHAINS[name], x)
    np.testing.assert_allclose(tape.hvp(y, x, tf.ones_like(x)), wanted, rtol=1e-5)
    np.testing.assert_allclose(tape.gradient(tape.gradient(y, x), x), wanted, rtol=1e-5)
    np.testing.assert_allclose(tape.hvp(y, x, tf.ones_like(x)), wanted, rtol=1e-5)
