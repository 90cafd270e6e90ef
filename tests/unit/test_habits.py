"""What one types from habit, and what the tape says to it."""

from __future__ import annotations

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def test_keep_in_the_place_of_persistent():
    with pytest.raises(TypeError, match=r"True or False, got 'segments'\. Did you mean keep='segments'\?"):
        rt.Tape("segments")


@pytest.mark.parametrize("habit", [pickle.dumps, copy.copy, copy.deepcopy])
def test_tapes_are_saved_not_pickled(habit):
    x = tf.Variable(1.0)
    with rt.Tape() as tape:
        x * 2.0
    for each in (tape, rt.join(tape)):
        with pytest.raises(TypeError, match=r"not pickled or copied\. Save it: `tape\.save\(path\)`"):
            habit(each)


def test_a_model_as_source():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 2])))
    with pytest.raises(rt.errors.NotASourceError, match=r"got .*Sequential.* Did you mean its `trainable_variables`\?"):
        tape.gradient(loss, model)


def test_what_a_tape_looks_like():
    tape, x = rt.Tape(), tf.Variable(1.0)
    assert repr(tape) == "<tape: nothing recorded>"
    with tape:
        x * 2.0
        assert repr(tape) == "<tape: 2 equations, recording>"
    assert repr(tape) == "<tape: 2 equations>"
    assert repr(rt.join(tape)) == "<joined tape: 2 equations, 0 names>"


# ------------------------------------------------------------------ ValueError where the stock tape raises it


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
def test_a_tape_is_entered_once(make):
    with make() as tape, pytest.raises(ValueError, match="recording"):
        tape.__enter__()


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
@pytest.mark.parametrize("value", [None, 1.0, "x", np.ones(2)], ids=["None", "number", "text", "array"])
def test_what_cannot_be_watched(make, value):
    with make() as tape, pytest.raises(ValueError, match=r"(?i)tensor"):
        tape.watch(value)


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
def test_a_pause_outside_of_the_block(make):
    with make() as tape:
        pass
    with pytest.raises(ValueError, match="recording"), tape.stop_recording():
        pass


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
@pytest.mark.parametrize(
    ("target", "source"),
    [([2], [2, 3]), ([2, 3], [2]), ([3, 2], [2, 3])],
    ids=["target of numbers", "source of numbers", "other length"],
)
def test_ranks_of_batch_jacobian(make, target, source):
    x = tf.ones(source)
    with make() as tape:
        tape.watch(x)
        y = tf.ones(target) * tf.reduce_sum(x)
    with pytest.raises(ValueError, match=r"rank|first dimension"):
        tape.batch_jacobian(y, x)


@pytest.mark.parametrize("method", ["gradient", "jacobian", "backward", "backward_each", "batch_jacobian"])
def test_unknown_unconnected_gradients(method):
    x = tf.ones([2, 2])
    with rt.Tape() as tape:
        y = x * x
    target = [y, y] if method == "backward_each" else y
    source = x if method == "batch_jacobian" else [x]
    with pytest.raises(ValueError, match=r"takes 'none' or 'zero', or a tf\.UnconnectedGradients, got 'nought'\."):
        getattr(tape, method)(target, source, unconnected_gradients="nought")


def test_one_source_in_a_list():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as stock, rt.Tape() as tape:
        stock.watch(x)
        y = x * x
    (found,) = tape.batch_jacobian(y, [x])
    np.testing.assert_array_equal(found, stock.batch_jacobian(y, x))
    np.testing.assert_array_equal(tape.batch_jacobian([y], {"x": x})["x"], found)
    np.testing.assert_array_equal(tape.jacobian([y], x), tape.jacobian(y, x))
    (nothing,) = tape.batch_jacobian(y, [tf.ones([2, 3])])
    assert nothing.shape == [2, 2, 3]
