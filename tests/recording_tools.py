"""What the tests of recording share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from retrotape import _hooks

X = tf.constant(1.7)


def hooked() -> list[Any]:
    """Return everything of TensorFlow that recording may replace, as it is now."""
    return [owner.__dict__[name] for owner, name, _ in _hooks._HOOKS]


UNTOUCHED = hooked()


def is_untouched() -> bool:
    return (
        all(now is then for now, then in zip(hooked(), UNTOUCHED, strict=True)) and not context.context().op_callbacks
    )


def dense(value: Any) -> Any:
    if value is None:
        return None
    return tf.convert_to_tensor(value).numpy()


def assert_close(ours: Any, theirs: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    ours, theirs = tf.nest.flatten(ours), tf.nest.flatten(theirs)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert dense(one).shape == dense(other).shape
            np.testing.assert_allclose(dense(one), dense(other), rtol=rtol, atol=atol)


def stock_gradient(f: Callable, sources: Any, **options: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch([s for s in tf.nest.flatten(sources) if isinstance(s, tf.Tensor)])
        target = f()
    return tape.gradient(target, sources, **options)


def dense_net(width: int = 4, activation: str = "tanh") -> keras.Model:
    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [keras.layers.Dense(width, activation), keras.layers.Dense(width, activation), keras.layers.Dense(1)]
    )
    net.build((None, 3))
    return net


def batch(rows: int = 5, columns: int = 3) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).normal(size=(rows, columns)).astype("float32"))
