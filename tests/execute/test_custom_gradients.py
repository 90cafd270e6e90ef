"""Custom gradients see what they would have seen when their op ran."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close, stock_gradient


@pytest.mark.parametrize("read", ["before", "after", "never"])
def test_a_custom_gradient_sees_variables_as_they_were(read):
    v = tf.Variable(2.0)

    @tf.custom_gradient
    def f(a):
        return tf.identity(a), lambda upstream: upstream * v.read_value()

    with rt.Tape() as tape:
        if read == "before":
            v.read_value()
        y = f(X)
        if read == "after":
            v.read_value()
    v.assign(10.0)
    assert float(tape.gradient(y, X)) == 2.0
    assert float(v) == 10.0


def test_a_custom_gradient_sees_each_value_of_a_variable_in_its_time():
    v = tf.Variable(2.0)

    @tf.custom_gradient
    def f(a):
        return tf.identity(a), lambda upstream: upstream * v.read_value()

    with rt.Tape() as tape:
        v.read_value()
        y = f(X)
        v.assign(5.0)
        z = f(X)
    v.assign(10.0)
    assert float(tape.gradient(y, X)) == 2.0
    assert float(tape.gradient(z, X)) == 5.0


def test_a_custom_gradient_with_variables_is_that_of_the_stock_tape():
    w = tf.Variable(2.0)

    @tf.custom_gradient
    def f(a):
        y = a * w

        def backward(upstream, variables=None):
            return upstream * 7.0, [upstream * 11.0 for _ in variables]

        return y, backward

    expected = stock_gradient(lambda: f(X) * 3.0, [X, w])
    with rt.Tape() as tape:
        y = f(X) * 3.0
    assert_close(tape.gradient(y, [X, w]), expected)
    assert_close(expected, [21.0, 33.0])


def test_a_custom_gradient_has_a_derivative_too():
    @tf.custom_gradient
    def f(a):
        return tf.math.log1p(tf.exp(a)), lambda upstream: upstream * (1.0 - 1.0 / (1.0 + tf.exp(a)))

    with rt.Tape() as tape:
        y = f(X)
    first = tape.gradient(y, X)
    sigmoid = tf.sigmoid(X)
    assert_close(first, sigmoid)
    assert_close(tape.gradient(first, X), sigmoid * (1 - sigmoid))


def test_clipping_gradients_by_a_custom_gradient():
    @tf.custom_gradient
    def clip(a):
        return tf.identity(a), lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)

    with rt.Tape() as tape:
        inner = X * 2.0
        y = clip(inner) * 100.0
    assert_close(tape.gradient(y, [X, inner]), [2.0, 1.0])
