"""Jacobians are those of the stock tape, row by row and all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import assert_close, batch, dense_net

W = tf.constant(np.random.default_rng(1).normal(size=(6, 7)).astype("float32"))
FUNCTIONS = {
    "square": lambda a: a * a,
    "softmax": tf.nn.softmax,
    "matmul": lambda a: tf.tanh(a @ W),
    "sum": tf.reduce_sum,
    "rows": lambda a: tf.reduce_sum(a**3, axis=1),
    "concat": lambda a: tf.concat([a, tf.sin(a)], axis=1),
    "gather": lambda a: tf.gather(a**2, [0, 2, 0], axis=1),
    "cumsum": lambda a: tf.cumsum(a, axis=1) ** 2,
    "transpose": lambda a: tf.transpose(a) @ a,
    "function": tf.function(lambda a: tf.sin(a) * a),
}


def both_jacobians(f: Callable, a: tf.Tensor, **options: Any) -> tuple[Any, Any]:
    with tf.GradientTape(persistent=True) as stock:
        stock.watch(a)
        y = f(a)
    with rt.Tape() as tape:
        z = f(a)
    return tape.jacobian(z, a, **options), stock.jacobian(y, a, **options)


@pytest.mark.parametrize(("rows", "pfor"), [(1, True), (1, False), (2, True), (4, True), (4, False)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobian_is_that_of_the_stock_tape(name, rows, pfor):
    ours, theirs = both_jacobians(FUNCTIONS[name], batch(rows, 6), experimental_use_pfor=pfor)
    assert_close(ours, theirs)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", ["square", "softmax", "matmul", "concat", "gather", "cumsum", "function"])
def test_batch_jacobian_is_that_of_the_stock_tape(name, rows):
    a, f = batch(rows, 6), FUNCTIONS[name]
    with tf.GradientTape() as stock:
        stock.watch(a)
        y = f(a)
    with rt.Tape() as tape:
        z = f(a)
    ours = tape.batch_jacobian(z, a)
    assert_close(ours, stock.batch_jacobian(y, a))
    full = tape.jacobian(z, a)
    assert_close(ours, tf.stack([full[row, :, row] for row in range(rows)]))


def test_batch_jacobian_of_a_wide_target():
    a = batch(3, 20)
    with tf.GradientTape() as stock:
        stock.watch(a)
        y = tf.cumsum(a, axis=1) ** 2
    with rt.Tape() as tape:
        z = tf.cumsum(a, axis=1) ** 2
    theirs = stock.batch_jacobian(y, a)
    assert_close(tape.batch_jacobian(z, a), theirs)
    assert_close(tape.batch_jacobian(z, a, experimental_use_pfor=False), theirs)


def test_jacobian_agrees_with_finite_differences():
    a = tf.cast(batch(3, 2), tf.float64)

    def f(t):
        return tf.sin(t) @ tf.transpose(t) * tf.exp(t[:, :1])

    with rt.Tape() as tape:
        y = f(a)
    found = tape.jacobian(y, a).numpy()
    step = 1e-6
    for row in range(3):
        for column in range(2):
            bump = np.zeros((3, 2))
            bump[row, column] = step
            slope = (f(a + bump) - f(a - bump)) / (2 * step)
            np.testing.assert_allclose(found[:, :, row, column], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("size", [3, 20])
def test_jacobian_by_variables_and_nests(size):
    net, data = dense_net(), batch(size)
    with tf.GradientTape() as stock:
        stock.watch(data)
        y = tf.squeeze(net(data))
    with rt.Tape() as tape:
        z = tf.squeeze(net(data))
    theirs = stock.jacobian(y, {"all": net.trainable_variables, "data": data})
    ours = tape.jacobian(z, {"all": net.trainable_variables, "data": data})
    assert_close(ours["all"], theirs["all"])
    assert_close(ours["data"], theirs["data"])
    assert ours["data"].shape == (size, size, 3)


@pytest.mark.parametrize("size", [3, 20])
@pytest.mark.parametrize("compiled", [False, True])
def test_jacobian_by_rows_that_were_looked_up(size, compiled):
    table = tf.Variable(batch(6, 2))
    at = [index % 6 for index in range(size // 2 + 1)]

    def look():
        return tf.gather(table, at) ** 2

    look = tf.function(look) if compiled else look
    with tf.GradientTape() as stock:
        y = look()
    with rt.Tape() as tape:
        z = look()
    assert_close(tape.jacobian(z, table), stock.jacobian(y, table))


@pytest.mark.parametrize("size", [3, 20])
def test_jacobian_by_a_source_without_path(size):
    a, b = tf.ones(size), tf.ones((2, 2))
    with rt.Tape() as tape:
        y = a * 2.0
        b * 3.0
    mixed = tape.jacobian(y, [b, a])
    assert mixed[0] is None
    assert_close(mixed[1], 2 * tf.eye(size))
    assert tape.jacobian(y, b) is None
    assert_close(tape.jacobian(y, [b, a], unconnected_gradients="zero"), [tf.zeros((size, 2, 2)), 2 * tf.eye(size)])


def test_batch_jacobian_by_a_source_without_path_is_that_of_the_stock_tape():
    a, b = tf.ones((2, 3)), tf.ones((2, 4))
    with tf.GradientTape() as stock:
        stock.watch([a, b])
        y = a * 2.0
    with rt.Tape() as tape:
        z = a * 2.0
        b * 1.0
    assert_close(tape.batch_jacobian(z, b), stock.batch_jacobian(y, b))


@pytest.mark.parametrize("size", [3, 20])
def test_jacobian_through_a_custom_gradient_and_a_loop(size):
    @tf.custom_gradient
    def triple(a):
        return a * a, lambda upstream: upstream * 3.0 * a

    @tf.function
    def loop(a):
        for _ in tf.range(3):
            a = a * tf.sin(a)
        return a

    a = tf.linspace(0.1, 1.0, size)
    ours, theirs = both_jacobians(lambda t: loop(triple(t)), a)
    assert_close(ours, theirs)


def test_jacobian_inside_a_function_is_that_outside():
    a = batch(2, 3)

    @tf.function
    def inside(t):
        with rt.Tape() as tape:
            y = tf.nn.softmax(t)
        return tape.jacobian(y, t), tape.batch_jacobian(y, t)

    with rt.Tape() as tape:
        y = tf.nn.softmax(a)
    assert_close(inside(a), (tape.jacobian(y, a), tape.batch_jacobian(y, a)))


def test_a_hessian_by_asking_again():
    a = tf.constant([0.5, 1.5, 2.5])
    with rt.Tape() as tape:
        y = tf.reduce_sum(a**3) + a[0] * a[1] * a[2]
    gradient = tape.gradient(y, a)
    a0, a1, a2 = a.numpy()
    expected = [[6 * a0, a2, a1], [a2, 6 * a1, a0], [a1, a0, 6 * a2]]
    assert_close(tape.jacobian(gradient, a), np.array(expected, "float32"))


def test_ragged_sources_are_answered_as_by_the_stock_tape():
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    values = ragged.values
    with tf.GradientTape(persistent=True) as stock:
        stock.watch(ragged)
        y = tf.reduce_sum(ragged * ragged, axis=1)
    with rt.Tape() as tape:
        z = tf.reduce_sum(ragged * ragged, axis=1)
    ours, theirs = tape.gradient(z, ragged), stock.gradient(y, ragged)
    assert isinstance(ours, tf.RaggedTensor)
    assert ours.to_list() == theirs.to_list() == [[2.0, 4.0], [6.0]]
    assert_close(tape.jacobian(z, values), tf.constant([[2.0, 4.0, 0.0], [0.0, 0.0, 6.0]]))
