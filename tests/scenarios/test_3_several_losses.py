"""Several losses, several optimizers, parts of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


class Parts:
    """A shared matrix and two that follow it, each with a loss of its own."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        shapes = {"shared": (4, 3), "left": (3, 1), "right": (3, 2)}
        made = {
            name: tf.Variable(rng.normal(size=shape).astype("float32"), name=name) for name, shape in shapes.items()
        }
        self.shared, self.left, self.right = made.values()
        self.all = list(made.values())
        self.x = tf.constant(rng.normal(size=(6, 4)), tf.float32)

    def losses(self) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.tanh(self.x @ self.shared)
        return (
            tf.reduce_mean(tf.square(features @ self.left - 1.0)),
            tf.reduce_mean(tf.math.softplus(features @ self.right)),
        )


def train_apart(make_tape: Callable[[], Any]) -> list[np.ndarray]:
    """3.1: two losses, two optimizers, two parts."""
    parts = Parts()
    adam, sgd = keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.1)
    for _ in range(15):
        with make_tape() as tape:
            first, second = parts.losses()
        mine = [parts.shared, parts.left]
        by_first, by_second = tape.gradient(first, mine), tape.gradient(second, parts.right)
        adam.apply_gradients(zip(by_first, mine, strict=True))
        sgd.apply_gradients([(by_second, parts.right)])
    return [variable.numpy() for variable in parts.all]


def train_jointly(make_tape: Callable[[], Any]) -> list[np.ndarray]:
    """3.2: one step on everything, then a second one on a part, by the same optimizer."""
    parts = Parts()
    adam = keras.optimizers.Adam(0.02)
    for _ in range(15):
        with make_tape() as tape:
            first, second = parts.losses()
            both = first + second
        by_both, by_second = tape.gradient(both, parts.all), tape.gradient(second, parts.right)
        adam.apply_gradients(zip(by_both, parts.all, strict=True))
        adam.apply_gradients([(by_second, parts.right)])
    return [variable.numpy() for variable in parts.all]


@pytest.mark.parametrize("train", [train_apart, train_jointly], ids=["3_1", "3_2"])
def test_3_weights_are_those_of_the_stock_tape(train):
    ours, stock = train(rt.Tape), train(lambda: tf.GradientTape(persistent=True))
    for got, want, before in zip(ours, stock, Parts().all, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
        assert not np.allclose(got, before.numpy(), atol=1e-2)


CLIPS: dict[str, tuple[dict[str, float], Callable[[list[np.ndarray]], list[np.ndarray]]]] = {
    "each": ({"norm": 0.3}, lambda grads: [grad * min(1.0, 0.3 / size(grad)) for grad in grads]),
    "all": ({"global_norm": 0.6}, lambda grads: [grad * min(1.0, 0.6 / size(*grads)) for grad in grads]),
    "none": ({"global_norm": 1e9}, lambda grads: grads),
}


def size(*grads: np.ndarray) -> float:
    return float(np.sqrt(sum(np.sum(np.square(grad)) for grad in grads)))


@pytest.mark.parametrize("name", CLIPS)
def test_3_3_gradients_of_two_losses_summed_clipped_applied(name):
    bound, clip = CLIPS[name]
    parts = Parts()
    stepped = [variable.numpy().astype("float64") for variable in parts.all]
    sgd = keras.optimizers.SGD(0.5)
    for _ in range(8):
        with rt.Tape() as tape:
            first, second = parts.losses()
        by_first, by_second = tape.backward(first, parts.all), tape.backward(second, parts.all)
        assert by_first.missing == (parts.right,)  # where adding lists fails
        assert by_second.missing == (parts.left,)
        total = (by_first + by_second).clip(**bound)
        assert total.missing == ()
        total.apply(sgd)
        stepped = by_hand(parts.x.numpy().astype("float64"), stepped, clip)
    for variable, want in zip(parts.all, stepped, strict=True):
        np.testing.assert_allclose(variable, want, rtol=1e-4, atol=1e-5)


def by_hand(x: np.ndarray, weights: list[np.ndarray], clip: Callable) -> list[np.ndarray]:
    """Make the same step in NumPy, with the derivatives written out."""
    shared, left, right = weights
    features = np.tanh(x @ shared)
    by_left_out = 2.0 * (features @ left - 1.0) / len(x)
    by_right_out = 1.0 / (1.0 + np.exp(-(features @ right))) / (len(x) * right.shape[1])
    by_features = by_left_out @ left.T + by_right_out @ right.T
    grads = [x.T @ (by_features * (1.0 - features**2)), features.T @ by_left_out, features.T @ by_right_out]
    return [weight - 0.5 * grad for weight, grad in zip(weights, clip(grads), strict=True)]
