"""What a tape records while a `tf.autodiff.ForwardAccumulator` is open, and what it leaves as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.tf import core

Accumulator = tf.autodiff.ForwardAccumulator
X, WAY = tf.constant([1.0, 2.0], tf.float64), tf.constant([1.0, -2.0], tf.float64)


def make() -> tuple[tf.Variable, Callable, Callable]:
    w = tf.Variable([0.3, 0.4], dtype=tf.float64)

    def loss() -> tf.Tensor:
        return tf.reduce_sum(tf.sin(w * X) ** 2 * w)

    return w, loss, tf.function(loss)


def product(w: tf.Variable, loss: Callable) -> tf.Tensor:
    """Return the Hessian's product, without accumulator."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = loss()
        along = tf.reduce_sum(inner.gradient(y, w) * WAY)
    return outer.gradient(along, w)


@pytest.mark.parametrize("in_function", [False, True])
def test_variables_as_primals(in_function: bool):
    w, loss, function = make()
    f = function if in_function else loss
    with rt.Tape() as tape:
        with Accumulator(w, WAY) as forward:
            y = f()
        moved = forward.jvp(y)
    np.testing.assert_allclose(tape.gradient(moved, w), product(w, loss))
    assert [v.ref() for v in tape.backward(moved).keys()] == [w.ref()]


@pytest.mark.parametrize("keep", ["needed", "leaves"])
def test_a_variable_that_was_read_before_the_accumulator_was_opened(keep: str):
    w, loss, function = make()
    with rt.Tape(keep=keep) as tape:
        tf.identity(w)
        with Accumulator(w, WAY) as forward:
            y = function()
            grad = tape.gradient(y, w)
    np.testing.assert_allclose(forward.jvp(grad), product(w, loss))


@pytest.mark.parametrize("in_function", [False, True])
def test_saved_and_loaded(in_function: bool, tmp_path: Path):
    w, loss, function = make()
    with rt.Tape() as tape:
        with Accumulator(w, WAY) as forward:
            y = (function if in_function else loss)()
        moved = forward.jvp(y)
    tape.save(tmp_path / "a.tape", names={"moved": moved, "w": w})
    loaded = rt.load(tmp_path / "a.tape")
    np.testing.assert_allclose(loaded.gradient(loaded["moved"], loaded["w"]), product(w, loss))


def test_joined():
    w, loss, _ = make()
    with Accumulator(w, WAY) as forward:
        with rt.Tape() as first:
            inner = w * X
        with rt.Tape() as second:
            y = tf.reduce_sum(tf.sin(inner) ** 2 * w)
    found = rt.join(first, second).gradient(forward.jvp(y), w)
    np.testing.assert_allclose(found, product(w, loss))


def test_through_a_function_that_assigns():
    c = tf.Variable(2.0, dtype=tf.float64)

    @tf.function
    def f(x: tf.Tensor) -> tf.Tensor:
        c.assign(c * tf.reduce_sum(x))
        return tf.reduce_sum(x**2) * c

    f.get_concrete_function(X)
    with rt.Tape() as tape:
        with Accumulator(X, WAY) as forward:
            y = f(X)
        z = forward.jvp(y) + c
    # z = 2 (x·way) c' + c' with c' = c sum(x); TensorFlow's tangent ends at the assignment
    np.testing.assert_allclose(tape.gradient(z, X), 12.0 * WAY)
    by_x, by_c = tape.gradient(z, [X, c], through_updates=True)
    np.testing.assert_allclose(by_x, 12.0 * WAY - 12.0 + 2.0)
    np.testing.assert_allclose(by_c, -18.0 + 3.0)


def test_random_draws_in_a_function():
    f = tf.function(lambda x: tf.reduce_sum(tf.nn.dropout(x**3, 0.5)))
    x = 2.0 * tf.ones([64], tf.float64)
    with rt.Tape() as tape:
        with Accumulator(x, tf.ones_like(x)) as forward:
            y = f(x)
        moved = forward.jvp(y)
    first = tape.gradient(y, x)
    np.testing.assert_allclose(moved, tf.reduce_sum(first))
    np.testing.assert_allclose(tape.gradient(moved, x), first)  # 24 for 24: of 2x³, where x is 2
    with Accumulator(x, tf.ones_like(x)):
        with rt.Tape() as tape:
            y = f(x)
        with pytest.raises(rt.errors.NotRecordedError, match=r"random draws .* cannot be recomputed. Use `tape.hvp"):
            tape.gradient(y, x)


def test_two_accumulators_around_moments_in_a_function_are_refused():
    f = tf.function(lambda x: tf.nn.moments(tf.sin(x), [0])[1])
    with rt.Tape() as tape:
        with Accumulator(X, WAY) as outer:
            with Accumulator(X, WAY) as inner:
                y = f(X)
            first = inner.jvp(y)
        second = outer.jvp(first)
    with pytest.raises(rt.errors.UnrepairableError):
        tape.gradient(second, X)
    assert tape.gradient(first, X) is not None


def test_every_op_is_recorded_once_and_before_its_tangents():
    with rt.Tape() as tape, Accumulator(X, WAY):
        tf.reshape(tf.sin(X), [1, 2])
    ops = [eqn.op for eqn in tape.program.eqns]
    assert ops.count("Sin") == ops.count("Reshape") == 1
    assert ops[0] == "Sin"
    assert len(ops) == 4  # two ops, and two functions that compute tangents


def test_leaving_the_block_leaves_accumulators_as_they_were():
    with rt.Tape():
        pass
    with Accumulator(X, WAY) as forward:
        y = tf.sin(X)
        assert core.accumulating()
    np.testing.assert_allclose(forward.jvp(y), tf.cos(X) * WAY)
    assert not core.accumulating()


def test_a_stock_tape_beside_ours_still_knows():
    w, loss, function = make()
    with tf.GradientTape() as stock, rt.Tape() as tape:
        with Accumulator(w, WAY) as forward:
            y = function()
        moved = forward.jvp(y)
    np.testing.assert_allclose(stock.gradient(moved, w), product(w, loss))
    np.testing.assert_allclose(tape.gradient(moved, w), product(w, loss))
