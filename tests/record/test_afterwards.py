"""Whatever happens inside a block, nothing of it is left in TensorFlow afterwards."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close
from helpers.untouched import is_untouched
from retrotape import errors


def test_hooks_are_in_place_while_recording_and_gone_after():
    with rt.Tape():
        assert not is_untouched()
    assert is_untouched()


def test_an_exception_inside_the_block_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError), rt.Tape() as tape:  # noqa: PT012
        y = X * X
        raise ZeroDivisionError
    assert is_untouched()
    assert_close(tape.gradient(y, X), 2 * X)


def test_an_op_that_fails_inside_the_block_leaves_nothing_behind():
    with pytest.raises(tf.errors.InvalidArgumentError), rt.Tape() as tape:  # noqa: PT012
        y = X * X
        tf.reshape(tf.ones(3), [2])
    assert is_untouched()
    assert_close(tape.gradient(y, X), 2 * X)


def test_an_exception_inside_a_function_or_a_custom_gradient_leaves_nothing_behind():
    @tf.function
    def fails(a):
        tf.debugging.assert_less(a, 0.0)
        return a

    @tf.custom_gradient
    def breaks(a):
        raise KeyError

    with rt.Tape() as tape:
        with pytest.raises(tf.errors.InvalidArgumentError):
            fails(X)
        with pytest.raises(KeyError):
            breaks(X)
        y = tf.reshape(X * X, [1])
    assert is_untouched()
    assert_close(tape.gradient(y, X), 2 * X)


def test_an_exception_while_a_question_is_answered_leaves_nothing_behind():
    v = tf.Variable(2.0)

    @tf.custom_gradient
    def f(a):
        def backward(upstream):
            raise KeyError("backward")

        return tf.identity(a), backward

    with rt.Tape() as tape:
        y = v * X + f(X)
    with pytest.raises(KeyError, match="backward"):
        tape.gradient(y, X)
    assert is_untouched()
    assert_close(tape.gradient(y, v), X)


def test_nested_blocks_left_by_one_exception():
    with pytest.raises(ZeroDivisionError), rt.Tape() as outer, rt.Tape() as inner:  # noqa: PT012
        y = X * X
        with inner.stop_recording():
            raise ZeroDivisionError
    assert is_untouched()
    assert_close([outer.gradient(y, X), inner.gradient(y, X)], [2 * X, 2 * X])


def test_blocks_may_be_left_in_any_order():
    first, second, third = rt.Tape(), rt.Tape(), rt.Tape()
    first.__enter__()
    second.__enter__()
    third.__enter__()
    y = X * X
    second.__exit__(None, None, None)
    z = y * X
    first.__exit__(None, None, None)
    w = tf.reshape(z * X, [1])
    third.__exit__(None, None, None)
    assert is_untouched()
    assert_close(third.gradient(w, X), 4 * X**3)
    assert_close(first.gradient(z, X), 3 * X**2)
    assert_close(second.gradient(y, X), 2 * X)
    with pytest.raises(errors.NotRecordedError, match="it was made after recording ended"):
        second.gradient(z, X)


def test_leaving_a_block_that_was_never_entered_is_harmless():
    tape = rt.Tape()
    tape.__exit__(None, None, None)
    assert is_untouched()
    with tape:
        y = X * X
    assert_close(tape.gradient(y, X), 2 * X)


def test_asking_leaves_nothing_behind():
    with rt.Tape() as tape:
        y = X**4
    first = tape.gradient(y, X)
    assert is_untouched()
    tape.gradient(first, X)
    tape.jacobian(y, X)
    assert is_untouched()
