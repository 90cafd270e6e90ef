"""A tape with something of everything, the same whoever records it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt


@tf.custom_gradient
def bent(x: tf.Tensor) -> Any:
    root = tf.sin(x)
    return root * root, lambda upstream: upstream * 7.0 * tf.nn.silu(root * x)


@tf.function
def inside(x: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(2):
        x = bent(x) + tf.nn.silu(x)
    return x


def record() -> tuple[rt.Tape, dict[str, Any]]:
    """Return a tape and the names of what is on it."""
    keras.utils.set_random_seed(5)
    x, words = tf.constant([0.3, -1.2, 2.0]), tf.constant(["a", "bc"])
    w, rate = tf.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], name="w"), keras.optimizers.Adam(0.1)
    rate.build([w])
    mean = tf.reduce_mean(x)
    with rt.Tape() as tape:
        hidden = inside(x) * tf.nn.silu(x) + bent(x)
        if tf.reduce_sum(x) > 0.0:
            hidden = hidden * 2.0
        with tf.GradientTape() as inner:
            loss = tf.reduce_sum(tf.gather(w, [0, 1, 1]) * hidden)
        rate.apply([inner.gradient(loss, w)], [w])
        centre, variance = tf.nn.moments(w, [1])
        noise = tf.random.stateless_normal([3], [1, 2]) * tf.random.uniform([3], seed=4)
        letters = tf.cast(tf.strings.length(words)[0], tf.float32)
        final = tf.reduce_sum(w**2) + letters * x[0] + tf.reduce_sum(noise * x) + tf.reduce_sum(centre * variance)
        look = final * mean
    return tape, {"x": x, "words": words, "w": w, "rate": rate.learning_rate, "final": final, "look": look}


def save(path: str, values: str = "leaves") -> None:
    """Record and save."""
    tape, names = record()
    tape.save(path, names, values=values)


def answers(path: str) -> dict[str, list[float]]:
    """Return what a saved tape says, as plain numbers."""
    loaded = rt.load(path)
    first = loaded.gradient("final", "x", through_updates=True)
    found = {
        "final": loaded["final"],
        "first": first,
        "second": loaded.gradient(first, "x"),
        "by w": loaded.gradient("final", "w", through_updates=True),
        "by rate": loaded.gradient("final", "rate", through_updates=True),
        "replayed": loaded.replay({"x": [0.4, -1.1, 1.9]})["look"],
    }
    return {name: np.asarray(tf.convert_to_tensor(value)).reshape(-1).tolist() for name, value in found.items()}
