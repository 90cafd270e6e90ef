"""Random programs with assignments and functions, the same again for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


@tf.custom_gradient
def sine(a: tf.Tensor) -> Any:
    return tf.sin(a), lambda dy: dy * tf.cos(a)


UNARY: list[Callable] = [
    sine,
    tf.sin,
    tf.tanh,
    tf.nn.silu,
    tf.nn.softmax,
    tf.cumsum,
    lambda a: a * a,
    lambda a: tf.gather(a, [0, 0, 2]),
    lambda a: tf.nn.moments(a, [0])[1] * a,
]
BINARY: list[Callable] = [
    lambda a, b: a * b,
    lambda a, b: a - b,
    lambda a, b: a / (b * b + 1.0),
    lambda a, b: tf.concat([a, b], 0)[1:4],
]
CALLED = tf.function(lambda a, b: tf.tanh(a) * b + tf.nn.silu(b))


class Randomly:
    """A program that a seed decides on, from the values that its tensors and variables begin with."""

    def __init__(self, seed: int, values: list[np.ndarray]) -> None:
        self._rng = random.Random(seed)
        self.tensors = [tf.constant(value) for value in values[:2]]
        self.variables = [tf.Variable(value) for value in values[2:]]
        first, second, *_ = self.variables
        self._update = tf.function(lambda d: first.assign(tf.tanh(first * d) + second))
        self._update.get_concrete_function(self.tensors[0])
        self._made: list[Any] = list(self.tensors)

    @property
    def sources(self) -> list[Any]:
        return [*self.tensors, *self.variables]

    def _pick(self) -> tf.Tensor:
        return self._rng.choice([*self._made, *self.variables]) * 1.0

    def step(self) -> None:
        kind, rng = self._rng.random(), self._rng
        if kind < 0.4:
            self._made.append(rng.choice(UNARY)(self._pick()))
        elif kind < 0.7:
            self._made.append(rng.choice(BINARY)(self._pick(), self._pick()))
        elif kind < 0.78:
            self._made.append(CALLED(self._pick(), self._pick()))
        elif kind < 0.86:
            self._made.append(self._update(rng.choice(self._made)) * 1.0)
        else:
            variable = rng.choice(self.variables)
            rng.choice([variable.assign, variable.assign_add, variable.assign_sub])(tf.tanh(rng.choice(self._made)))

    def end(self) -> tf.Tensor:
        held = sum(tf.sin(variable) for variable in self.variables)
        return tf.reduce_sum(0.7 * self._made[-1] + tf.tanh(self._rng.choice(self._made)) + held)


def begin(seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return values to begin with and directions to move them in."""
    rng = np.random.default_rng(seed)
    return list(rng.uniform(-1, 1, (5, 3))), list(rng.normal(size=(5, 3)))


def same(ours: list[Any], theirs: list[Any]) -> None:
    """Check that gradients are the same but for rounding, and missing in the same places."""
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), rtol=1e-9, atol=1e-12)
