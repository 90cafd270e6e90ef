"""What tests of several folders record, how they compare it, and threads and segments for it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from retrotape.execute import _each, _values
from retrotape.record import _segments

X = tf.constant(1.7)


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


def in_threads(*work: Callable[[], Any]) -> None:
    """Run each on a thread of its own, all at once; raise what one of them raised, or that one did not end."""
    failed: list[BaseException] = []

    def guarded(step: Callable[[], Any]) -> None:
        try:
            step()
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=guarded, args=(step,), daemon=True) for step in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failed:
        raise failed[0]
    assert not any(thread.is_alive() for thread in threads)


def set_segment(patch: pytest.MonkeyPatch, size: int) -> None:
    """Let a segment be as small as `size` bytes, so that a short recording has many."""
    for module in (_segments, _values, _each):
        patch.setattr(module, "SEGMENT", size)
    patch.setattr(_values, "trim", lambda: None)  # after so few bytes it would take most of the time


def batch(rows: int = 5, columns: int = 3) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).normal(size=(rows, columns)).astype("float32"))
