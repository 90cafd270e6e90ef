"""Functions that AutoGraph converts: those that run in eager code, and those that become a `tf.function` in a step."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt

X = tf.constant(1.5)


def doubled(make):
    """Return what a step gives before and after the state that a function reads is changed, and the step."""
    factor = [2.0]
    step = rt.compile(make(lambda a: a * factor[0]), audit=False)
    before = [float(step(X)) for _ in range(3)]
    factor[0] = 3.0
    return [*before, float(step(X))], step


def mapping(function):
    return lambda x: tf.map_fn(function, tf.ones([2]))[0] * x


def making(function):
    return lambda x: tf.function(function)(x)


def converting(function):
    return lambda x: tf.autograph.to_graph(function)(x)


@pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
@pytest.mark.parametrize("make", [mapping, making, converting])
def test_the_state_that_a_converted_function_reads(make):
    found, _ = doubled(make)
    assert found == [3.0, 3.0, 3.0, 4.5]


def test_a_function_is_made_outside_of_the_step():
    with pytest.warns(rt.errors.PlaybackWarning, match="it makes a tf.function at .*; make it once, outside the step"):
        doubled(making)


def test_a_function_that_was_made_before_is_played_back():
    function = tf.function(lambda a: a * 2.0)
    step = rt.compile(lambda x: function(x) + 1.0, strict=True)
    assert [float(step(X)) for _ in range(4)] == [4.0] * 4
    assert [one.plays for one in step.recordings()] == [3]


@pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
def test_effects_of_a_mapped_function():
    calls = []

    def called(a):
        calls.append(1)
        return a * 2.0

    step = rt.compile(lambda x: tf.map_fn(called, tf.ones([2]))[0] * x)
    assert [float(step(X)) for _ in range(5)] == [3.0] * 5
    assert len(calls) == 10
