"""Callbacks of others, such as check_numerics, go on as they did."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

import retrotape as rt
from helpers.recording import X, assert_close


def test_check_numerics_around_the_block():
    tf.debugging.enable_check_numerics()
    try:
        with rt.Tape() as tape:
            y = tf.reshape(X * X, [1])
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"NaN|Inf"):
                tf.math.log(X * -1.0)
        assert_close(tape.gradient(y, X), 2 * X)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"NaN|Inf"):
            tf.math.log(X * -1.0)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"NaN|Inf"):
            tf.raw_ops.Reshape(tensor=tf.math.log(X * -1.0), shape=[1])
    finally:
        tf.debugging.disable_check_numerics()
    assert np.isnan(tf.math.log(X * -1.0))


def test_check_numerics_switched_on_inside_and_off_outside():
    with rt.Tape() as tape:
        tf.debugging.enable_check_numerics()
        y = X * X
    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"NaN|Inf"):
            tf.math.log(X * -1.0)
        assert_close(tape.gradient(y, X), 2 * X)
    finally:
        tf.debugging.disable_check_numerics()
    assert np.isnan(tf.math.log(X * -1.0))


def test_check_numerics_switched_off_inside():
    tf.debugging.enable_check_numerics()
    with rt.Tape() as tape:
        tf.debugging.disable_check_numerics()
        y = tf.reshape(X * X, [1])
        assert np.isnan(tf.math.log(X * -1.0))
    assert_close(tape.gradient(y, X), 2 * X)


def test_a_callback_of_the_user_hears_the_same_as_without_us():
    def heard() -> list[str]:
        ops: list[str] = []

        def callback(op, inputs, attrs, outputs, op_name=None, graph=None):
            ops.append(op if isinstance(op, str) else op.decode())

        op_callbacks.add_op_callback(callback)
        try:
            tf.reshape(tf.sin(X * X), [1])
        finally:
            op_callbacks.remove_op_callback(callback)
        return ops

    alone = heard()
    with rt.Tape():
        beside = heard()
    assert alone == beside
    assert {"Sin", "Reshape"} <= set(alone)


def running(op, inputs, attrs, outputs, op_name=None, graph=None):
    """Run ops of its own for each op that runs, in eager code."""
    if graph is None and str(op).strip("b'") in ("Log", "Mul", "Softplus"):
        tf.nn.relu(tf.exp(inputs[-1]))


def replacing(op, inputs, attrs, outputs, op_name=None, graph=None):
    """Put other tensors in the place of those of a graph."""
    return None if graph is None else [tf.identity(one) if one.dtype.is_floating else one for one in outputs]


class checking:
    """What `tf.debugging.enable_check_numerics` adds."""


@contextmanager
def switched_on(callback):
    if callback is checking:
        tf.debugging.enable_check_numerics()
    else:
        op_callbacks.add_op_callback(callback)
    try:
        yield
    finally:
        if callback is checking:
            tf.debugging.disable_check_numerics()
        else:
            op_callbacks.remove_op_callback(callback)


@contextmanager
def both(first, second):
    """Enter two blocks, of which the second one begins in the first one and ends after it."""
    with ExitStack() as outer:
        tape = outer.enter_context(first)
        with ExitStack() as inner:
            inner.enter_context(second)
            yield tape
            outer.pop_all().close()


V = tf.Variable(3.0)


def loss():
    return tf.math.log(V) * V + tf.nn.softplus(V * 2.0)


def of_tape(order, callback, kind, function):
    tape = kind()
    blocks = {
        "around": lambda: (switched_on(callback), tape),
        "inside": lambda: (tape, switched_on(callback)),
    }[order]()
    with blocks[0], blocks[1]:
        y = function()
    return tape.gradient(y, V)


@pytest.mark.parametrize("order", ["around", "inside"])
@pytest.mark.parametrize("callback", [running, replacing, checking], ids=lambda each: each.__name__)
@pytest.mark.parametrize("way", ["eager", "a function is called", "in a function"])
def test_derivatives_beside_callbacks_that_run_ops_or_replace_tensors(order, callback, way):
    function = tf.function(loss) if way == "a function is called" else loss

    def ask(kind):
        def once():
            return of_tape(order, callback, kind, function)

        return (tf.function(once, autograph=False) if way == "in a function" else once)()

    expected = np.log(3.0) + 1.0 + 2.0 / (1.0 + np.exp(-6.0))
    assert_close(ask(tf.GradientTape), expected)
    assert_close(ask(rt.Tape), expected)


@pytest.mark.parametrize("callback", [running, checking], ids=lambda each: each.__name__)
def test_blocks_that_end_in_another_order(callback):
    tape = rt.Tape()
    with both(switched_on(callback), tape):
        y = loss()
    assert_close(tape.gradient(y, V), np.log(3.0) + 1.0 + 2.0 / (1.0 + np.exp(-6.0)))
    assert not context.context().op_callbacks
    tape = rt.Tape()
    with both(tape, switched_on(callback)):
        y = loss()
    assert_close(tape.gradient(y, V), np.log(3.0) + 1.0 + 2.0 / (1.0 + np.exp(-6.0)))
    assert not context.context().op_callbacks
