"""First derivatives are the stock tape's to the bit: whatever is summed is summed in the same order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.seeds import seeds


@tf.custom_gradient
def _scaled(a):
    return a * 1.5, lambda g: g * 1.25


@tf.custom_gradient
def _two(a, b):
    return (a * b, a + b), lambda g, h: (g * b + h, g * a - h)


WITH_CUSTOM = {
    "swish": tf.nn.swish,
    "scaled": _scaled,
    "two": lambda a: tf.subtract(*_two(a, tf.sin(a))),
    "function": tf.function(lambda a: tf.nn.silu(a) * tf.cos(a)),
}
PLAIN: list[Callable] = [tf.nn.leaky_relu, tf.sin, lambda a: a / (2.0 + tf.cos(a)), lambda a: tf.matmul(a, a) / 3.0]
BINARY: list[Callable] = [tf.matmul, tf.multiply, tf.subtract, lambda a, b: a + 0.3 * (b - a)]


def program(seed: int) -> Callable[[list[Any]], tf.Tensor]:
    """Return a program in which every value may be used several times, by custom gradients too."""

    def run(sources: list[Any]) -> tf.Tensor:
        rng, made = random.Random(seed), list(sources)
        for _ in range(12):
            kind = rng.random()
            if kind < 0.35:
                made.append(WITH_CUSTOM[rng.choice(list(WITH_CUSTOM))](rng.choice(made)))
            elif kind < 0.6:
                made.append(rng.choice(PLAIN)(rng.choice(made)))
            else:
                made.append(rng.choice(BINARY)(rng.choice(made), rng.choice(made)))
        return tf.add_n([tf.reduce_sum(tf.sin(value)) for value in made[-5:]])

    return run


@pytest.mark.parametrize("seed", seeds(8, 24))
def test_custom_gradients_among_several_uses(seed: int):
    values = np.random.RandomState(seed).randn(2, 3, 3).astype("float32")
    x, w, run = tf.constant(values[0]), tf.Variable(values[1]), program(seed)
    with tf.GradientTape() as stock:
        stock.watch(x)
        y = run([x, w])
    with rt.Tape() as tape:
        z = run([x, w])
    for ours, theirs in zip(tape.gradient(z, [x, w]), stock.gradient(y, [x, w]), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours, theirs)
