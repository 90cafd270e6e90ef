"""Second derivatives where the stock tape is right, where it is wrong, and where a stop is meant."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from laws.curved import WEIGHTS, X, eager, layer_function, mixed, over_moments, right_hessian, stock

pytestmark = pytest.mark.usefixtures("double_precision")
STOPPED = {
    "moments": over_moments,
    "batch_normalization": lambda x: layer_function("batch")(x),  # made when it is asked for, in float64
}


@pytest.mark.parametrize("name", STOPPED)
def test_first_derivative_is_the_stock_one_to_the_bit(name: str):
    f = STOPPED[name]
    x = tf.constant(X)
    with rt.Tape() as tape:
        y = f(x)
    np.testing.assert_array_equal(tape.gradient(y, x), stock(f)[0])
    # Also after somebody has asked for the second derivative.
    tape.hessian(y, x)
    np.testing.assert_array_equal(tape.gradient(y, x), stock(f)[0])


@pytest.mark.parametrize("name", STOPPED)
def test_second_derivative_is_right_where_the_stock_one_is_wrong(name: str):
    f = STOPPED[name]
    right = right_hessian(f)
    assert np.max(np.abs(stock(f)[1] - right)) > 1e-2
    np.testing.assert_allclose(eager(f), right, rtol=1e-6, atol=1e-7)


def test_variance_written_out_has_the_hessian_of_moments():
    def variance(x: tf.Tensor) -> tf.Tensor:
        return mixed(tf.reduce_mean((x - tf.reduce_mean(x, 0)) ** 2, 0))

    def moments(x: tf.Tensor) -> tf.Tensor:
        return mixed(tf.nn.moments(x, [0])[1])

    np.testing.assert_allclose(eager(moments), eager(variance), rtol=1e-10, atol=1e-12)


def test_third_derivative_of_moments():
    x, v = tf.constant(X), tf.constant(WEIGHTS)

    def second(point: np.ndarray) -> np.ndarray:
        at = tf.constant(point)
        with rt.Tape() as tape:
            y = over_moments(at)
        return tape.hvp(y, at, v).numpy()

    with rt.Tape() as tape:
        y = over_moments(x)
    third = tape.jvp(tape.hvp(y, x, v), x, v).numpy()
    wanted = (second(X + 1e-6 * WEIGHTS) - second(X - 1e-6 * WEIGHTS)) / 2e-6
    np.testing.assert_allclose(third, wanted, rtol=1e-6, atol=1e-6)


def test_a_stop_that_was_meant_is_respected():
    # Not the pattern of a variance: here the user stops, and every order has to stop.
    x = tf.constant(X)
    with rt.Tape() as tape:
        y = tf.reduce_sum(x**2 * tf.stop_gradient(tf.reduce_mean(x, 0)) ** 2)
        centred = tf.reduce_sum(tf.math.squared_difference(x, tf.stop_gradient(x * x)))
    frozen = np.mean(X, 0) ** 2
    hessian = tape.hessian(y, x).numpy().reshape(12, 12)
    np.testing.assert_allclose(hessian, np.diag(np.tile(2 * frozen, 4)), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(tape.hessian(centred, x).numpy().reshape(12, 12), 2 * np.eye(12))


def test_a_sparse_gradient_is_asked_about():
    table = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=tf.float64)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1, 2]) ** 3)
    first = tape.gradient(loss, table)
    assert isinstance(first, tf.IndexedSlices)
    times = tf.constant([[0.0], [2.0], [1.0]], tf.float64)
    second = tf.convert_to_tensor(tape.gradient(first, table))
    np.testing.assert_allclose(second, 6.0 * tf.convert_to_tensor(table) * times)


def test_a_stock_gradient_of_a_function_inside_the_block_is_derived_twice_more():
    x = tf.constant([0.3, -1.2, 2.0], tf.float64)
    function = tf.function(lambda x: tf.sin(x) * x**2)

    def squared_gradient():
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(function(x))
        return tf.reduce_sum(inner.gradient(y, x) ** 2)

    with rt.Tape() as tape:
        z = squared_gradient()
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as middle:
            middle.watch(x)
            again = squared_gradient()
        first = middle.gradient(again, x)
    found = tape.gradient(z, x)
    np.testing.assert_allclose(found, first, rtol=1e-12)
    np.testing.assert_allclose(tape.gradient(found, x), outer.gradient(first, x), rtol=1e-12)


def test_ops_with_a_shape_among_their_attributes_are_computed_again():
    x = tf.constant([1.0, 2.0])
    with rt.Tape(keep="leaves") as tape:
        y = tf.reduce_sum(tf.ensure_shape(x * 2.0, [None]) ** 2)
    np.testing.assert_allclose(tape.gradient(y, x), [8.0, 16.0])
