"""Second derivatives of everything that takes means and variances, against differences of gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from laws.curved import (
    FUNCTIONS,
    MORE_WAYS,
    STOPPING,
    WAYS,
    X,
    called_inside,
    layer_function,
    mixed,
    over_moments,
    right_hessian,
    slope_of_gradients,
    stock,
)
from retrotape import errors

pytestmark = pytest.mark.usefixtures("double_precision")


def check(f: Callable, way: Callable) -> None:
    np.testing.assert_allclose(way(f), right_hessian(f), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_hessian_of_a_function(way: str, name: str):
    check(FUNCTIONS[name], WAYS[way])


@pytest.mark.parametrize("name", ["batch", "layer", "unit"])
@pytest.mark.parametrize("way", WAYS)
def test_hessian_through_a_layer(way: str, name: str):
    check(layer_function(name), WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["group", "rms", "spectral"])
@pytest.mark.parametrize("way", WAYS)
def test_hessian_through_the_other_layers(way: str, name: str):
    check(layer_function(name), WAYS[way])


@pytest.mark.parametrize("way", MORE_WAYS)
def test_hessian_of_moments_asked_in_other_ways(way: str):
    check(over_moments, MORE_WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FUNCTIONS, "batch"])
@pytest.mark.parametrize("way", MORE_WAYS)
def test_hessian_asked_in_other_ways(way: str, name: str):
    check(layer_function(name) if name == "batch" else FUNCTIONS[name], MORE_WAYS[way])


@pytest.mark.parametrize("name", ["moments", "batch", "cross_entropy_with_soft_labels"])
def test_function_called_inside_a_function_is_refused_rather_than_wrong(name: str):
    f = layer_function(name) if name == "batch" else FUNCTIONS[name]
    with pytest.raises(errors.UnrepairableError, match=r"The second derivative passes .* record in eager code"):
        called_inside(f)


def test_first_derivative_of_a_function_called_inside_a_function():
    f = tf.function(over_moments)

    @tf.function
    def ask(x: tf.Tensor) -> tf.Tensor:
        with rt.Tape() as tape:
            y = f(x)
        return tape.gradient(y, x)

    np.testing.assert_allclose(ask(tf.constant(X)), stock(over_moments)[0], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in STOPPING])
def test_function_called_inside_a_function(name: str):
    check(FUNCTIONS[name], called_inside)


def model() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [
        keras.layers.Dense(4, activation="tanh"),
        keras.layers.BatchNormalization(epsilon=0.1),
        keras.layers.Dense(3, activation="softplus"),
        keras.layers.LayerNormalization(epsilon=0.1),
        keras.layers.Dense(1),
    ]
    return keras.Sequential([keras.Input([3]), *layers])


@pytest.mark.parametrize("wrapped", [False, True])
def test_hessian_of_a_model_by_data_and_weights(wrapped: bool):
    net = model()
    call = tf.function(net) if wrapped else net
    x, kernel = tf.constant(X), net.layers[0].kernel
    with rt.Tape() as tape:
        loss = tf.reduce_mean(call(x, training=True) ** 2)

    def f(at: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(net(at, training=True) ** 2)

    np.testing.assert_allclose(tape.hessian(loss, x), slope_of_gradients(f, X), rtol=1e-6, atol=1e-8)
    direction = tf.constant(np.random.default_rng(5).normal(size=kernel.shape))
    found = tape.hvp(loss, kernel, direction)
    start, ends = kernel.numpy(), []
    for sign in (1, -1):
        kernel.assign(start + sign * 1e-6 * direction)
        with tf.GradientTape() as stock:
            y = f(x)
        ends.append(stock.gradient(y, kernel.value).numpy())
    np.testing.assert_allclose(found, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-8)


def test_statistics_move_as_they_would_without_the_tape():
    layer, plain = (keras.layers.BatchNormalization(momentum=0.5) for _ in range(2))
    layer.build([None, 3])
    plain.build([None, 3])
    x = tf.constant(X)
    with rt.Tape() as tape:
        y = mixed(layer(x, training=True))
    tape.hessian(y, x)
    tape.gradient(tape.gradient(y, x), x)
    plain(x, training=True)
    np.testing.assert_array_equal(layer.moving_mean, plain.moving_mean)
    np.testing.assert_array_equal(layer.moving_variance, plain.moving_variance)


@pytest.mark.parametrize("scope", ["moments", "mine"])
def test_a_users_own_stop_gradient_is_never_passed(scope: str, tmp_path: Path):
    """Also where its scope is called as the function of TensorFlow whose `stop_gradient` is passed."""
    held, x = tf.Variable(0.0), tf.constant(3.0)

    @tf.function
    def stopped(x: tf.Tensor) -> tf.Tensor:
        with tf.name_scope(scope):
            factor = tf.stop_gradient(x)
        held.assign(x)  # so that the function is looked into
        return factor * x**2

    with rt.Tape() as tape:
        y = stopped(x)
    tape.save(tmp_path / "stopped.tape", {"x": x, "y": y})
    loaded = rt.load(tmp_path / "stopped.tape")
    for first in (tape.gradient(y, x, through_updates=True), loaded.gradient("y", "x")):
        assert float(first) == 3.0 * 2.0 * 3.0
    for second in (tape.hessian(y, x, through_updates=True), loaded.hessian("y", "x")):
        assert float(second) == 3.0 * 2.0
