"""One variable, several tapes: gradients that add up, one optimizer for two models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def test_0_1_gradients_of_two_tapes_add_up():
    x = tf.Variable(2.0)
    with rt.Tape() as left:
        square = tf.square(x + 1.0)
    with rt.Tape() as right:
        wave = tf.sin(x) + x
    total = left.gradient(square, x) + right.gradient(wave, x)
    slope = 2.0 * (2.0 + 1.0) + math.cos(2.0) + 1.0
    assert float(total) == pytest.approx(slope, abs=1e-6)
    keras.optimizers.SGD(0.1).apply_gradients([(total, x)])
    assert float(x) == pytest.approx(2.0 - 0.1 * slope, abs=1e-6)


def test_0_2_straight_lines_on_two_tapes():
    shared = tf.Variable(1.0)
    with rt.Tape() as left:
        double = shared * 2.0
    with rt.Tape() as right:
        shifted = shared + 5.0
    total = left.gradient(double, shared) + right.gradient(shifted, shared)
    assert float(total) == 3.0
    shared.assign_sub(0.1 * total)
    assert float(shared) == pytest.approx(0.7, abs=1e-6)


class Pair:
    """Two Keras models and data for them; every one that is made begins with the same weights."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.x = tf.constant(rng.normal(size=(10, 32)), tf.float32)
        self.left, self.right = self._model(16, 1), self._model(8, 2)
        self.weights = [*self.left.trainable_variables, *self.right.trainable_variables]

    @staticmethod
    def _model(width: int, seed: int) -> keras.Model:
        layers = [keras.layers.Dense(size, "relu", kernel_initializer="zeros") for size in (width, 32)]
        model = keras.Sequential([keras.Input((32,)), *layers])
        rng = np.random.default_rng(seed)
        model.set_weights([rng.normal(scale=0.3, size=weight.shape) for weight in model.get_weights()])
        return model

    def train(self, step: Callable[[Any], None]) -> list[np.ndarray]:
        adam = keras.optimizers.Adam(0.02)
        for _ in range(12):
            step(adam)
        return [weight.numpy() for weight in self.weights]


def check_trained(ours: list[np.ndarray], stock: list[np.ndarray]) -> None:
    before = [weight.numpy() for weight in Pair().weights]
    for got, want, start in zip(ours, stock, before, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
        assert np.abs(got - start).max() > 0.05


def test_0_3_two_models_one_tape_each_one_adam():
    ours, stock = Pair(), Pair()

    def step(adam: Any) -> None:
        with rt.Tape() as left_tape:
            left = tf.reduce_mean(ours.left(ours.x) ** 2)
        with rt.Tape() as right_tape:
            right = tf.reduce_mean((ours.right(ours.x) - 1.0) ** 2)
        total = left_tape.backward(left) + right_tape.backward(right)
        assert len(total) == 8
        total.apply(adam)

    def stock_step(adam: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(stock.left(stock.x) ** 2) + tf.reduce_mean((stock.right(stock.x) - 1.0) ** 2)
        adam.apply(tape.gradient(loss, [weight.value for weight in stock.weights]), stock.weights)

    check_trained(ours.train(step), stock.train(stock_step))


def test_0_3_one_model_feeds_the_other():
    ours, stock = Pair(), Pair()

    def step(adam: Any) -> None:
        with rt.Tape() as left_tape:
            features = ours.left(ours.x)
        with rt.Tape() as right_tape:
            loss = tf.reduce_mean((ours.right(features) - 1.0) ** 2)
        assert right_tape.backward(loss, ours.weights).missing == tuple(ours.left.trainable_variables)
        rt.join(left_tape, right_tape).backward(loss).apply(adam)

    def stock_step(adam: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((stock.right(stock.left(stock.x)) - 1.0) ** 2)
        adam.apply(tape.gradient(loss, [weight.value for weight in stock.weights]), stock.weights)

    check_trained(ours.train(step), stock.train(stock_step))
