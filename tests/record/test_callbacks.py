"""Callbacks of others, such as check_numerics, go on as they did."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
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
