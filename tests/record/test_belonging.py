"""Which ops belong to a recording: pauses, blocks entered again, resets."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close
from retrotape import errors


def test_stop_recording_leaves_out():
    with rt.Tape() as tape:
        with tape.stop_recording():
            scale = X * 2.0
        y = X * scale
    assert_close(tape.gradient(y, X), scale)
    assert_close(tape.gradient(y, scale), X)
    assert [eqn.op for eqn in tape.program.eqns] == ["Mul"]


def test_stop_recording_of_one_tape_does_not_pause_another():
    with rt.Tape() as outer, rt.Tape() as inner, inner.stop_recording():
        y = X**2
    assert_close(outer.gradient(y, X), 2 * X)
    with pytest.raises(errors.NotRecordedError, match="while recording was paused"):
        inner.gradient(y, X)


def test_stop_recording_ends_with_an_exception():
    with rt.Tape() as tape:
        with pytest.raises(KeyError), tape.stop_recording():
            raise KeyError
        y = X**2
    assert_close(tape.gradient(y, X), 2 * X)


def test_stop_recording_inside_a_function():
    @tf.function
    def f(a):
        with rt.Tape() as tape:
            with tape.stop_recording():
                scale = a * 2.0
            y = a * scale
        return tape.gradient(y, a)

    assert_close(f(X), 2 * X)


def test_one_tape_entered_several_times_is_one_recording():
    tape = rt.Tape()
    y = X
    for _ in range(3):
        with tape:
            y = y * X
    assert_close(tape.gradient(y, X), 4 * X**3)


def test_what_runs_between_two_blocks_is_a_leaf():
    tape = rt.Tape()
    with tape:
        y = X * X
    between = y * 3.0
    with tape:
        z = between * y
    assert_close(tape.gradient(z, y), between)
    assert_close(tape.gradient(z, X), between * 2 * X)


def test_reset_inside_forgets_what_was_before():
    with rt.Tape() as tape:
        y = X * X
        tape.reset()
        z = y * X
    assert_close(tape.gradient(z, X), y)
    assert [eqn.op for eqn in tape.program.eqns] == ["Mul"]


def test_reset_outside_makes_the_tape_new():
    tape = rt.Tape()
    with tape:
        y = X * X
    tape.gradient(y, X)
    tape.reset()
    with tape:
        z = y * X
    assert_close(tape.gradient(z, X), y)


def test_reset_inside_a_function():
    @tf.function
    def f(a):
        with rt.Tape() as tape:
            y = a * a
            tape.reset()
            z = y * a
        return tape.gradient(z, a)

    assert_close(f(X), X * X)


def test_a_tape_that_was_left_hears_nothing():
    with rt.Tape() as tape:
        y = X * X
    before = len(tape.program.eqns)
    tf.reshape(y * 2.0, [1])
    assert len(tape.program.eqns) == before
