"""Following a program in every state of a tape: paused, reset, entered again, interrupted, queried while open."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import in_threads
from helpers.warm import forgetful
from record.following import assert_like, check, has_followed, trace_of
from retrotape import errors

X = tf.constant([0.5, -1.5, 2.0])
W = tf.Variable([1.0, -2.0, 3.0], name="w")
START = [1.0, -2.0, 3.0]


@pytest.fixture(autouse=True)
def _begins_without_programs() -> Iterator[None]:
    W.assign(START)
    with forgetful():
        yield


def both(block, *cases, times: int = 4):
    """Return what a block gives warm, and what it gives op by op."""
    for _ in range(times):
        W.assign(START)
        warm = block(*cases)
    W.assign(START)
    with rt.config(compile=False):
        return warm, block(*cases)


# ------------------------------------------------------------------ variables


def test_an_update_between_two_blocks_is_not_recorded():
    def block():
        with rt.Tape() as tape:
            y = tf.sin(W * X)
        W.assign(W * 2.0)
        with tape:
            z = tf.reduce_sum(y * W)
        with pytest.raises(errors.UnseenUpdateError):
            tape.gradient(z, W, through_updates=True)
        return tape, tape.gradient(z, [y])

    (warm, ours), (cold, theirs) = both(block)
    assert_like(warm, cold)
    np.testing.assert_array_equal(ours[0], theirs[0])


def test_an_update_on_another_thread_is_noticed():
    def block():
        with rt.Tape() as tape:
            y = W * X
            in_threads(lambda: W.assign([5.0, 6.0, 7.0]))
            z = tf.reduce_sum(y * W)
        found = tape.gradient(z, y)
        return tape, found

    (warm, ours), (cold, theirs) = both(block)
    np.testing.assert_array_equal(ours, [5.0, 6.0, 7.0])
    np.testing.assert_array_equal(ours, theirs)
    assert_like(warm, cold)


def test_derivatives_through_updates_are_the_same():
    def block():
        with rt.Tape() as tape:
            for _ in range(3):
                W.assign_sub(0.1 * tf.sin(W) * X)
            loss = tf.reduce_sum(W**2)
        return tape, tape.gradient(loss, W, through_updates=True)

    (warm, ours), (cold, theirs) = both(block)
    assert has_followed(warm)
    assert_like(warm, cold)
    np.testing.assert_array_equal(ours, theirs)


def test_versions_have_the_values_of_this_run():
    for number in range(4):
        W.assign([float(number)] * 3)
        with rt.Tape() as tape:
            W.assign(W * 2.0)
            W.assign_add(X)
        found = [version.numpy() for version in tape.versions(W)]
        np.testing.assert_array_equal(found[0], [number] * 3)
        np.testing.assert_array_equal(found[1], [2.0 * number] * 3)
        np.testing.assert_array_equal(found[2], 2.0 * number + X)


def test_a_variable_made_in_the_block_is_recorded_each_time():
    def block(_):
        with rt.Tape() as tape:
            made = tf.Variable(X * 2.0, name="made")
            made.assign_add(X)
            made * X
        return tape

    check(block, 1, 1, 1, followed=None)


def test_a_backward_function_sees_this_runs_values():
    @tf.custom_gradient
    def scaled(a):
        return a * 1.0, lambda dy: dy * W

    for number in range(5):
        W.assign([float(number)] * 3)
        with rt.Tape() as tape:
            y = scaled(X)
        W.assign([100.0] * 3)
        np.testing.assert_array_equal(tape.gradient(y, X), [number] * 3)


# ------------------------------------------------------------------ states


def test_a_paused_tape_records_nothing_in_between():
    def block():
        with rt.Tape() as tape:
            y = tf.sin(X)
            with tape.stop_recording():
                constant = y * 3.0
            z = y * constant
        return tape, tape.gradient(z, X)

    (warm, ours), (cold, theirs) = both(block)
    assert_like(warm, cold)
    np.testing.assert_array_equal(ours, theirs)


def test_a_reset_tape_begins_again():
    def block():
        with rt.Tape() as tape:
            y = tf.sin(X)
            y = tf.cos(y)
            tape.reset()
            z = y * W
        return tape, tape.gradient(z, W)

    (warm, ours), (cold, theirs) = both(block)
    assert_like(warm, cold)
    np.testing.assert_array_equal(ours, theirs)


def test_a_tape_that_is_reset_and_used_again_gives_the_second_program():
    def block():
        tape = rt.Tape()
        with tape:
            tf.sin(X) * W
        tape.reset()
        with tape:
            y = tf.cos(X) * W
        return tape, tape.gradient(y, W)

    (warm, ours), (cold, theirs) = both(block)
    assert_like(warm, cold)
    np.testing.assert_array_equal(ours, theirs)


def test_a_tape_may_be_entered_again():
    def block():
        with rt.Tape() as tape:
            y = tf.sin(X)
        with tape:
            z = tf.reduce_sum(y**2)
        return tape, tape.gradient(z, X)

    (warm, ours), (cold, theirs) = both(block)
    assert_like(warm, cold)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("at", range(4))
def test_an_exception_leaves_what_ran_before_it(at: int):
    def block(stop):
        tape = rt.Tape()
        try:
            with tape:
                y = X * W
                for number, function in enumerate([tf.sin, tf.cos, tf.tanh]):
                    if number == stop:
                        raise KeyError
                    y = function(y)
        except KeyError:
            pass
        return tape

    check(block, 9, 9, at, followed=at == 3)
    check(block, 9)


def test_queries_while_the_tape_is_open():
    def block():
        found = []
        with rt.Tape() as tape:
            y = W * X
            for function in (tf.sin, tf.cos, tf.tanh):
                y = function(y)
                found.append(tape.gradient(tf.reduce_sum(y), W))
        return tape, found

    (_, ours), (_, theirs) = both(block)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_looking_at_the_program_while_the_tape_is_open():
    def block(_):
        sizes = []
        with rt.Tape() as tape:
            y = W * X
            for function in (tf.sin, tf.cos, tf.tanh):
                y = function(y)
                sizes.append(len(tape.program.eqns))
        assert sizes == [3, 4, 5]
        return tape

    check(block, 1, 1, 1)


def test_many_looks_at_a_long_program():
    def block(_):
        with rt.Tape() as tape:
            y = X
            for number in range(150):
                y = tf.sin(y)
                assert len(tape.program.eqns) == number + 1
        return tape

    check(block, 1, 1, followed=None)


def test_a_view_does_not_change_when_the_tape_goes_on():
    for _ in range(3):
        with rt.Tape() as tape:
            y = tf.sin(X)
            before = trace_of(tape).snapshot()
            tf.cos(y)
        assert [eqn.op for eqn in before.eqns] == ["Sin"]
        assert [eqn.op for eqn in tape.program.eqns] == ["Sin", "Cos"]


def test_nested_tapes_follow_side_by_side():
    def block():
        with rt.Tape() as outer:
            y = tf.sin(X * W)
            with rt.Tape() as inner:
                z = tf.reduce_sum(y * y)
            first = inner.gradient(z, y)
            loss = tf.reduce_sum(first * W)
        return outer, inner, [first, outer.gradient(loss, [W])[0]]

    (outer, inner, ours), (other_outer, other_inner, theirs) = both(block)
    assert_like(outer, other_outer)
    assert_like(inner, other_inner)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_tapes_of_one_line_are_independent():
    def record(scale):
        with rt.Tape() as tape:
            y = tf.sin(X * scale)
        return tape, y

    made = [record(float(number)) for number in range(5)]
    for number, (tape, y) in enumerate(made):
        np.testing.assert_array_equal(tape.gradient(y, X), tf.cos(X * float(number)) * float(number))


def test_what_was_not_kept_is_recomputed_from_this_runs_values():
    def record(scale):
        x = X * scale
        with rt.Tape() as tape:
            y = tf.sin(x + 1.0)
            z = tf.exp(y) + 2.0
            loss = tf.reduce_sum(z)
        tape.gradient(loss, x)
        return x, tape

    for number in range(6):
        x, tape = record(float(number))
        np.testing.assert_array_equal(tape.tensors(op="AddV2")[0], x + 1.0)
        np.testing.assert_array_equal(tape.tensors(op="Sin")[0], tf.sin(x + 1.0))
        np.testing.assert_array_equal(tape.tensors(op="AddV2")[1], tf.exp(tf.sin(x + 1.0)) + 2.0)
        second = tape.hessian(tape.tensors(op="Sum")[0], x)
        assert np.all(np.isfinite(second))


# ------------------------------------------------------------------ threads


def test_threads_follow_the_same_program():
    def work():
        for number in range(1, 15):
            with rt.Tape() as tape:
                y = tf.sin(X * float(number))
                if number % 3 == 0:
                    y = tf.cos(y)
                loss = tf.reduce_sum(y)
            want = tf.cos(X * number) * number
            if number % 3 == 0:
                want *= -tf.sin(tf.sin(X * number))
            np.testing.assert_allclose(tape.gradient(loss, X), want, rtol=1e-4, atol=1e-5)

    in_threads(*[work] * 4)


def test_a_block_that_is_left_on_another_thread_is_no_trouble():
    for _ in range(3):
        tape = rt.Tape()
        tape.__enter__()
        tf.sin(X)
        in_threads(lambda tape=tape: tape.__exit__(None, None, None))
        assert [eqn.op for eqn in tape.program.eqns] == ["Sin"]
