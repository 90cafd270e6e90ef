"""Functions: what runs inside of them is right, drawn once, and asked for only by those who need it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import assert_close


@pytest.fixture
def x():
    return tf.constant([0.5, -1.2, 2.0])


def ones(x):
    return tf.ones_like(x)


def test_the_second_derivative_of_a_custom_gradient_that_reads_a_variable(x):
    w = tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    @tf.custom_gradient
    def f(z):
        return tf.sin(z) * w, lambda g, variables=None: (g * tf.cos(z) * w, [g * tf.sin(z)])

    with rt.Tape() as tape:
        loss = tf.reduce_sum(f(x))
    assert_close(tape.hvp(loss, x, ones(x)), -np.sin(x) * w)
    slope = tape.gradient(loss, x)
    assert_close(tape.gradient(slope, w), np.cos(x))  # by way of what the backward function reads


def test_a_variable_that_only_the_backward_function_reads(x, tmp_path):
    u = tf.Variable(2.0, name="u")

    @tf.function
    @tf.custom_gradient
    def f(z):
        return z * 1.0, lambda g: g * u * z

    with rt.Tape() as tape:
        y = f(x)
    u.assign(5.0)
    slope = tape.gradient(y, x)
    assert_close(slope, 2.0 * x)
    assert_close(tape.gradient(slope, x), np.full(3, 2.0))
    assert_close(tape.gradient(slope, u), tf.reduce_sum(x))
    tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    assert_close(rt.load(tmp_path / "a.tape").gradient("y", "x"), 2.0 * x)


def test_a_tensor_that_only_the_backward_function_reads(x):
    scale = tf.constant(3.0)

    @tf.function
    @tf.custom_gradient
    def f(z):
        return z * 1.0, lambda g: g * scale * z

    with rt.Tape() as tape:
        tape.watch(scale)
        y = f(x)
    slope = tape.gradient(y, x)
    assert_close(tape.gradient(slope, scale), tf.reduce_sum(x))


def test_a_variable_given_as_an_argument(x):
    u = tf.Variable([2.0, 2.0, 2.0])

    @tf.function
    def f(z, v):
        @tf.custom_gradient
        def inner(a):
            return a * 1.0, lambda g: g * v

        return inner(z)

    with rt.Tape() as tape:
        y = f(x, u)
    u.assign([5.0, 5.0, 5.0])
    assert_close(tape.gradient(y, x), np.full(3, 2.0))


@pytest.mark.parametrize("function", [tf.function, lambda f: f])
def test_recompute_grad_draws_nothing_anew(function):
    block = tf.recompute_grad(lambda z: tf.nn.dropout(z, 0.5) * z)
    x = tf.ones(40)
    with rt.Tape() as tape:
        y = function(lambda z: block(z))(x)
        loss = tf.reduce_sum(y)
    for _ in range(2):
        assert_close(tape.gradient(loss, x), 2.0 * y)


def test_stock_tapes_keep_a_gradient_of_their_own():
    x, f = tf.ones(3), tf.function(tf.recompute_grad(lambda z: tf.nn.dropout(z, 0.5) * tf.sin(z)))
    with rt.Tape():
        f(x)
    made = f.get_concrete_function(x)
    assert not made._first_order_tape_functions
    assert not made._higher_order_tape_functions


def test_dropout_of_keras_in_a_function_that_recomputes():
    layer = keras.layers.Dropout(0.5, seed=3)
    block = tf.recompute_grad(lambda z: layer(z, training=True) * z)
    f, x = tf.function(lambda z: block(z)), tf.ones((1, 40))
    with rt.Tape() as tape:
        y = f(x)
        loss = tf.reduce_sum(y)
    for _ in range(2):
        assert_close(tape.gradient(loss, x), 2.0 * y)


def test_python_code_in_a_function(x):
    calls, printed = [], []

    def code(z):
        calls.append(1)
        return tf.sin(z)

    @tf.function
    def f(z):
        tf.py_function(lambda: printed.append(1), [], [])
        return tf.py_function(code, [z], tf.float32) * 2.0

    with rt.Tape() as tape:
        y = tf.reduce_sum(f(x))
    for _ in range(2):
        assert_close(tape.gradient(y, x), 2.0 * np.cos(x))
    assert_close(tape.hvp(y, x, ones(x)), -2.0 * np.sin(x))
    assert (len(calls), len(printed)) == (1, 1)


def test_python_code_in_a_function_that_asserts_and_returns_a_nest(x):
    @tf.function
    def f(z):
        tf.debugging.assert_less(z, 2.5)
        return {"a": tf.py_function(lambda v: v * v, [z], tf.float32), "b": (z * 3.0, None)}

    with rt.Tape() as tape:
        found = f(x)
    assert_close(tape.gradient([found["a"], found["b"][0]], x), 2.0 * x + 3.0)
    assert found["b"][1] is None
    with rt.Tape(), pytest.raises(tf.errors.InvalidArgumentError):
        f(x + 1.0)


def test_a_compiled_loop_that_nobody_differentiates():
    x, w, v = tf.constant([0.5, 2.0]), tf.constant(3.0), tf.Variable(2.0)

    @tf.function(jit_compile=True)
    def f(z):
        return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * w), [0, z])[1]

    with rt.Tape() as tape:
        loss = tf.reduce_sum(v * f(x))
    assert float(tape.gradient(loss, v)) == 67.5
    assert_close(tape.gradient(loss, x), np.full(2, 54.0))  # which stock refuses: op by op it has a derivative


def test_recompute_grad_of_a_function(x):
    f = tf.function(lambda z: z * tf.sin(z))
    with rt.Tape() as tape:
        y = tf.recompute_grad(f)(x)
    assert_close(tape.gradient(y, x), np.sin(x) + x * np.cos(x))


def test_a_backward_function_that_no_path_needs():
    @tf.function
    @tf.custom_gradient
    def h(z):
        def grad(dy):
            raise ValueError("nobody needs this gradient")

        return z * 2.0, grad

    x = tf.constant(3.0)
    with rt.Tape() as tape:
        y = h(tf.stop_gradient(x)) + x
        z = h(x)
    assert float(tape.gradient(y, x)) == 1.0
    with pytest.raises(ValueError, match="nobody needs this gradient"):
        tape.gradient(z, x)


def test_a_function_that_assigns_what_its_backward_function_reads(x):
    u = tf.Variable(2.0)

    @tf.custom_gradient
    def scaled(z):
        return z * 1.0, lambda g: g * u

    @tf.function
    def f(z):
        before = scaled(z)
        u.assign(5.0)
        return before, scaled(z)

    with rt.Tape() as tape:
        before, after = f(x)
    assert_close(tape.gradient(before, x), np.full(3, 2.0))
    assert_close(tape.gradient(after, x), np.full(3, 5.0))


class BuiltByItsFirstCall(tf.Module):
    w = None

    @tf.function
    def __call__(self, z):
        if self.w is None:
            self.w = tf.Variable([1.0, 2.0, 3.0], name="w")
        return tf.reduce_sum(z * self.w**2)


def test_a_variable_that_is_made_in_a_function(x):
    model = BuiltByItsFirstCall()
    with rt.Tape() as tape:
        model(x)
        model.w.assign(model.w * x)
        loss = model(x)
    assert len(tape.versions(model.w)) == 2
    assert_close(tape.gradient(loss, model.w, through_updates=True), 2.0 * x**3 * np.array([1.0, 2.0, 3.0]))


def test_a_backward_function_that_writes_what_it_reads():
    u, x = tf.Variable(2.0), tf.constant(1.0)

    @tf.custom_gradient
    def f(z):
        def grad(g):
            u.assign_add(1.0)
            return g * u

        return z * 1.0, grad

    with rt.Tape() as tape:
        y = f(x) + 0.0 * u
    assert float(tape.gradient(y, x)) == 3.0  # as run plainly
    with pytest.raises(rt.errors.TapeUseError, match=r"A backward function assigns.*has changed since it was recorded"):
        tape.gradient(y, x)


@pytest.mark.parametrize("value", [2.0, np.float32(2.0), [2.0]])
def test_numbers_as_gradients(value):
    @tf.custom_gradient
    def f(z):
        return z * 2.0, lambda dy: value

    x = tf.constant(1.0)
    with rt.Tape() as tape:
        y = f(x)
    assert float(tf.reshape(tape.gradient(y, x), [])) == 2.0


@pytest.mark.parametrize("table", [{int: 1, float: 2}, {1: 1, "a": 2}, {None: 1, "a": 2}])
def test_closures_that_reach_any_dictionary(table):
    class Layer:
        def __init__(self):
            self.table = table

        def __call__(self, x):
            @tf.custom_gradient
            def f(x):
                return x * 2.0, lambda dy: dy * len(self.table)

            return f(x)

    x = tf.constant(3.0)
    with rt.Tape() as tape:
        y = Layer()(x)
    assert float(tape.gradient(y, x)) == 2.0


def test_a_variable_that_is_made_in_a_function_is_saved(x, tmp_path):
    model = BuiltByItsFirstCall()
    with rt.Tape() as tape:
        loss = model(x)
    tape.save(tmp_path / "a.tape", {"x": x, "loss": loss})
    assert_close(rt.load(tmp_path / "a.tape").gradient("loss", "x"), np.array([1.0, 4.0, 9.0]))
