"""An answer is a target of the next question: higher orders, sparse and through functions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close, batch, dense_net
from retrotape import errors


def test_third_derivative_by_asking_again():
    with rt.Tape() as tape:
        y = X**4
    first = tape.gradient(y, X)
    second = tape.gradient(first, X)
    third = tape.gradient(second, X)
    assert_close([first, second, third], [4 * X**3, 12 * X**2, 24 * X])
    assert_close(tape.gradient(third, X), 24.0)


def test_third_derivative_agrees_with_finite_differences():
    a = tf.constant(0.8, tf.float64)

    def f(t):
        return tf.sin(t) * tf.exp(t) / (1 + t**2)

    def second(t):
        with rt.Tape() as tape:
            y = f(t)
        return tape, tape.gradient(tape.gradient(y, t), t)

    tape, found = second(a)
    step = 1e-5
    slope = (second(a + step)[1] - second(a - step)[1]) / (2 * step)
    assert_close(tape.gradient(found, a), slope, rtol=1e-7)


def test_mixed_partials_are_equal():
    a, b = tf.constant(0.3), tf.constant(1.4)
    with rt.Tape() as tape:
        y = tf.sin(a) * b**2
    by_a, by_b = tape.gradient(y, [a, b])
    expected = tf.cos(a) * 2 * b
    assert_close([tape.gradient(by_a, b), tape.gradient(by_b, a)], [expected, expected])
    assert_close([tape.gradient(by_a, a), tape.gradient(by_b, b)], [-tf.sin(a) * b**2, tf.sin(a) * 2])


def test_what_was_asked_is_a_new_target_only_for_the_tape_that_answered():
    with rt.Tape() as one, rt.Tape() as other:
        y = X**3
    g = one.gradient(y, X)
    assert_close(one.gradient(g, X), 6 * X)
    with pytest.raises(errors.NotRecordedError, match="after recording ended"):
        other.gradient(g, X)


def test_the_gradient_by_output_gradients_that_were_given():
    """The answer is linear in what flows in, so that its derivative by that is the first derivative."""
    weight = tf.constant(0.7)
    with rt.Tape() as tape:
        y = X**3
    g = tape.gradient(y, X, output_gradients=weight)
    assert_close(tape.gradient(g, weight), 3 * X**2)
    assert_close(tape.gradient(g, X), 6 * X * weight)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_gradient_of_a_gradient_through_keras(compiled):
    net, data = dense_net(), batch()
    call = tf.function(net) if compiled else net
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(data)
            out = tf.reduce_sum(call(data))
        penalty = tf.reduce_sum(inner.gradient(out, data) ** 2)
    expected = outer.gradient(penalty, net.trainable_variables)

    with rt.Tape() as tape:
        out = tf.reduce_sum(call(data))
    slope = tape.gradient(out, data)
    seed = 2.0 * slope  # d(sum g²)/dg
    # The output depends on the last bias, its slope does not: zero where the stock tape says None.
    zeros = [tf.zeros_like(v) if e is None else e for v, e in zip(net.trainable_variables, expected, strict=True)]
    second = tape.gradient(slope, net.trainable_variables, output_gradients=seed)
    assert_close(second, expected if compiled else zeros)

    with tape:
        penalty = tf.reduce_sum(tape.gradient(out, data) ** 2)
    assert_close(tape.gradient(penalty, net.trainable_variables), expected)


@tf.function
def power(a, n):
    result = tf.ones_like(a)
    for _ in tf.range(n):
        result = result * a
    return result


@tf.function
def branch(a, n):
    return tf.sin(a) * a if a > 0 else tf.exp(a)


@tf.function
def straight(a, n):
    return tf.sin(a) * a**2


@tf.function
def while_tensor_array(a, n):
    rows = tf.TensorArray(tf.float32, size=n)
    for index in tf.range(n):
        rows = rows.write(index, tf.sin(a) * tf.cast(index + 1, tf.float32))
    return tf.reduce_sum(rows.stack() ** 2)


@pytest.mark.parametrize("f", [power, branch, straight, while_tensor_array], ids=["while", "if", "plain", "array"])
def test_orders_through_a_function(f):
    n = tf.constant(5)
    tapes = [tf.GradientTape() for _ in range(3)]
    with tapes[2] as t3:
        t3.watch(X)
        with tapes[1] as t2:
            t2.watch(X)
            with tapes[0] as t1:
                t1.watch(X)
                y = f(X, n)
            g1 = t1.gradient(y, X)
        g2 = t2.gradient(g1, X)
    g3 = t3.gradient(g2, X)

    with rt.Tape() as tape:
        y = f(X, n)
    first = tape.gradient(y, X)
    second = tape.gradient(first, X)
    third = tape.gradient(second, X)
    assert_close([first, second, third], [g1, g2, g3], rtol=1e-4)


def test_second_order_inside_a_function():
    @tf.function
    def inside(a):
        with rt.Tape() as tape:
            y = a**3
        g = tape.gradient(y, a)
        return g, tape.gradient(g, a), tape.gradient(tape.gradient(g, a), a)

    assert_close(inside(X), (3 * X**2, 6 * X, 6.0))


def test_second_order_of_a_loop_inside_a_function():
    @tf.function
    def inside(a):
        with rt.Tape() as tape:
            y = tf.ones_like(a)
            for _ in tf.range(4):
                y = y * a
        g = tape.gradient(y, a)
        return g, tape.gradient(g, a)

    assert_close(inside(X), (4 * X**3, 12 * X**2))


def test_a_gradient_asked_inside_the_block_is_part_of_it():
    with rt.Tape() as tape:
        y = X**2
        g = tape.gradient(y, X)
        z = g * g
    assert_close(g, 2 * X)
    assert_close(tape.gradient(z, X), 8 * X)


def test_a_gradient_used_in_a_block_that_is_entered_again():
    tape = rt.Tape()
    with tape:
        y = tf.sin(X)
    g = tape.gradient(y, X)
    with tape:
        z = g * g * X
    # What was asked outside of the block is a constant in it, as on the stock tape; what is asked inside is not.
    assert_close(tape.gradient(z, X), tf.cos(X) ** 2)
    with tape:
        g = tape.gradient(y, X)
        z = g * g * X
    assert_close(tape.gradient(z, X), tf.cos(X) ** 2 - 2 * X * tf.cos(X) * tf.sin(X))


def test_a_sparse_gradient_is_a_target_too():
    table = tf.Variable(batch(4, 2))
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.gather(table, [1, 1, 3]) ** 3)
    g = tape.gradient(y, table)
    assert isinstance(g, tf.IndexedSlices)
    again = tape.gradient(g.values, table)
    counts = np.array([0, 2, 0, 1])[:, None]
    assert_close(again, 6 * table.numpy() * counts)


def test_gradients_are_vectors_for_products_by_their_keys():
    v, w, unused = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0]), tf.Variable(5.0)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(v * v * w + v * w * w)
    grads = tape.backward(loss, [w, v])
    for source in ([v, w], {"a": v, "b": w}):
        given = [grads[v], grads[w]]
        found, slope = tape.hvp(loss, source, grads), tape.jvp(loss, source, grads)
        for one, other in zip(tf.nest.flatten(found), tape.hvp(loss, [v, w], given), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(slope, sum(float(tf.reduce_sum(one * one)) for one in given), rtol=1e-6)
    with pytest.raises(errors.UnknownSourceError, match="Variable"):
        tape.hvp(loss, [v, unused], grads)
