"""What a plain variable means as a source, with and without updates."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def test_plain_variable_means_what_it_means_in_tensorflow():
    def record(tape: Any) -> tuple:
        variable, x = tf.Variable(2.0), tf.constant(3.0)
        with tape:
            tape.watch(x)
            first = variable * x
            variable.assign(variable * x)
            second = variable * variable * x
            variable.assign_add(x)
            y = first + second + variable
        return tape, y, [variable, x]

    stock, y, sources = record(tf.GradientTape())
    ours, z, own = record(rt.Tape())
    wanted = [float(g) for g in stock.gradient(y, sources)]
    assert [float(g) for g in ours.gradient(z, own)] == wanted
    assert [float(ours.gradient(z, source)) for source in own] == wanted


def test_plain_variable_that_a_function_assigns():
    def record(tape: Any) -> tuple:
        variable, x = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            before = variable * x
            variable.assign_add(x)
            return before + variable**2

        with tape:
            tape.watch(x)
            y = step(x) + variable * x
        return tape, y, [variable, x]

    stock, y, sources = record(tf.GradientTape())
    ours, z, own = record(rt.Tape())
    for wanted, found in zip(stock.gradient(y, sources), ours.gradient(z, own), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_none_and_zero_through_updates():
    variable, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape() as tape:
        before = variable * 1.0
        variable.assign(5.0)
        y = variable * x
        zero = variable * 0.0
    assert tape.gradient(y, tape.at(variable, 0)) is None
    assert tape.gradient(y, variable, through_updates=True) is None
    assert float(tape.gradient(before, tape.at(variable, 0))) == 1.0
    assert tape.gradient(before, tape.at(variable, 1)) is None
    assert float(tape.gradient(zero, tape.at(variable, 1))) == 0.0
    zeros = tape.gradient(y, tape.at(variable, 0), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert float(zeros) == 0.0


def test_value_from_numpy_ends_the_path():
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 2))
    x = tf.constant([[1.0, 2.0]])
    with rt.Tape() as tape:
        layer.set_weights([np.array([[3.0], [4.0]], np.float32)])
        y = layer(x)
    assert tape.gradient(y, tape.at(layer.kernel, 0)) is None
    np.testing.assert_array_equal(tape.gradient(y, tape.at(layer.kernel, -1)), [[1.0], [2.0]])
    np.testing.assert_array_equal(tape.gradient(y, x, through_updates=True), [[3.0, 4.0]])


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_keras_variable(method: str):
    variable, x = keras.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
    with rt.Tape() as tape:
        getattr(variable, method)(x * variable)
        y = tf.reduce_sum(variable * variable)
    new, slope = {
        "assign": ([3.0, 8.0], [3.0, 4.0]),
        "assign_add": ([4.0, 10.0], [4.0, 5.0]),
        "assign_sub": ([-2.0, -6.0], [-2.0, -3.0]),
    }[method]
    np.testing.assert_array_equal(tape.versions(variable)[-1].numpy(), new)
    wanted = 2 * np.array(new) * np.array(slope)
    np.testing.assert_array_equal(tape.gradient(y, tape.at(variable, 0)), wanted)
    np.testing.assert_array_equal(tape.gradient(y, variable, through_updates=True), wanted)
    np.testing.assert_array_equal(tape.gradient(y, variable), 2 * np.array(new))
