"""A trunk with several heads, and rows of gradients compared to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt


class Heads:
    """A trunk and eight heads on it, each with a loss of its own."""

    def __init__(self, heads: int = 8) -> None:
        rng = np.random.default_rng(7)

        def normal(*shape: int) -> tf.Variable:
            return tf.Variable(rng.normal(size=shape).astype("float32"))

        self.x = tf.constant(rng.normal(size=(5, 4)), tf.float32)
        self.trunk = [normal(4, 6), normal(6), normal(6, 6)]
        self.tops = [normal(6, 2) for _ in range(heads)]
        self.table = normal(9, 6)
        self.scale = tf.Variable(1.5)

    def losses(self) -> list[tf.Tensor]:
        first, bias, second = self.trunk
        hidden = tf.nn.gelu(self.x @ first + bias) + tf.gather(self.table, [1, 1, 3, 0, 8])
        hidden = tf.tanh(hidden @ second) * tf.nn.softmax(hidden) * self.scale
        means, spread = tf.nn.moments(hidden, [0])
        hidden = (hidden - means) / tf.sqrt(spread + 0.1)
        return [
            tf.reduce_mean(tf.square(hidden @ top - float(n))) + tf.reduce_sum(hidden)
            for n, top in enumerate(self.tops)
        ]

    @property
    def sources(self) -> list[Any]:
        return [*self.trunk, *self.tops, self.table, self.scale, self.x]


def identical(ours: Any, theirs: Any) -> None:
    assert (ours is None) == (theirs is None)
    assert isinstance(ours, tf.IndexedSlices) == isinstance(theirs, tf.IndexedSlices)
    if isinstance(ours, tf.IndexedSlices):
        np.testing.assert_array_equal(ours.indices, theirs.indices)
        ours, theirs = ours.values, theirs.values
    if ours is not None:
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def values_of(grad: Any) -> tf.Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def same(each: list[rt.Gradients], alone: list[rt.Gradients]) -> None:
    assert len(each) == len(alone)
    for row, other in zip(each, alone, strict=True):
        assert [id(key) for key in row.keys()] == [id(key) for key in other.keys()]
        for key in row.keys():
            identical(row.get(key), other.get(key))
            assert row.why(key) == other.why(key)
