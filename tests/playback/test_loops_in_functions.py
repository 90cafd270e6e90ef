"""Loops inside a `tf.function` that a step calls: played back as loops, whatever the number of iterations."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def halve(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a number halved until it is below one, and how often."""
    return tf.while_loop(lambda y, n: y > 1.0, lambda y, n: (y / 2.0, n + 1), (x, tf.constant(0)))


NUMBERS = [3.0, 100.0, 0.5, 17.0, 2.0**20, 1.5, 3.0, 40.0, 900.0, 1e5, 7.0, 65.0]


@pytest.mark.parametrize("jit", [False, True])
def test_one_recording_for_all_numbers_of_iterations(jit):
    function = tf.function(halve)
    step = rt.compile(lambda x: function(x * 2.0)[0] + 1.0, strict=True, jit=jit, audit=False)
    for number in NUMBERS:
        assert float(step(tf.constant(number))) == float(halve(tf.constant(number * 2.0))[0]) + 1.0
    assert [one.plays for one in step.recordings()] == [len(NUMBERS) - 1]


def test_the_function_lives_as_long_as_the_step():
    functions = {"halve": tf.function(halve)}
    step = rt.compile(lambda x: functions["halve"](x)[0], strict=True)
    assert float(step(tf.constant(10.0))) == 0.625
    functions["halve"] = None  # a change, so that the step is recorded again with another function
    gc.collect()
    functions["halve"] = tf.function(lambda x: (halve(x)[0] * 3.0,))
    assert [float(step(tf.constant(number))) for number in (10.0, 12.0, 3.0)] == [1.875, 2.25, 2.25]


def test_a_function_that_only_the_step_holds():
    concrete = tf.function(halve).get_concrete_function(tf.TensorSpec([]))
    compiled = rt.compile(lambda x: concrete(x)[0], strict=True)
    assert [float(compiled(tf.constant(number))) for number in (10.0, 12.0)] == [0.625, 0.75]
    gc.collect()
    assert float(compiled(tf.constant(3.0))) == 0.75


@pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")  # it is inlined, so that it is recorded often
def test_a_gradient_through_the_loop_is_that_of_the_loop():
    function, w = tf.function(halve), tf.Variable(3.0)

    def step(x):
        with rt.Tape() as tape:
            loss = function(w * x)[0]
        return loss, tape.gradient(loss, w)

    compiled = rt.compile(step)
    for number in NUMBERS:
        x = tf.constant(number)
        with tf.GradientTape() as tape:
            loss = halve(w * x)[0]
        found = compiled(x)
        assert [float(one) for one in found] == [float(loss), float(tape.gradient(loss, w))]


def test_loops_with_effects_are_inlined():
    total = tf.Variable(0.0)

    @tf.function
    def count(x):
        def body(y):
            total.assign_add(1.0)
            return y / 2.0

        return tf.while_loop(lambda y: y > 1.0, body, (x,))[0]

    step = rt.compile(lambda x: count(x))
    expected = 0
    for number in (3.0, 9.0, 3.0, 9.0):
        step(tf.constant(number))
        expected += int(np.ceil(np.log2(number)))
        assert float(total) == expected


def test_results_of_unknown_shape():
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def positive(x):
        x = tf.while_loop(lambda y: tf.reduce_max(y) > 1.0, lambda y: y / 2.0, (x,), (tf.TensorShape([None]),))[0]
        return tf.boolean_mask(x, x > 0.0)

    step = rt.compile(lambda x: tf.reduce_sum(positive(x)) + tf.cast(tf.size(positive(x)), tf.float32))
    for x in ([1.0, -2.0, 3.0], [1.0, 2.0, 3.0], [-1.0, -2.0, 3.0], [5.0, 6.0, -7.0]):
        x = tf.constant(x)
        expected = float(tf.reduce_sum(positive(x))) + float(tf.size(positive(x)))
        assert float(step(x)) == expected


@pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
def test_an_op_in_a_function_that_fails_though_nothing_uses_it():
    table, total = tf.constant([1.0, 2.0]), tf.Variable(0.0)

    @tf.function
    def looked_up(x, place):
        return halve(x)[0], tf.gather(table, place)

    def step(x, place):
        found = looked_up(x, place)[0]
        total.assign_add(found)
        return found

    compiled = rt.compile(step)
    for number in (3.0, 9.0, 5.0):
        compiled(tf.constant(number), tf.constant(1))
    before = float(total)
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        compiled(tf.constant(3.0), tf.constant(7))
    assert float(total) == before
