"""What one types from habit, and what the tape says to it."""

from __future__ import annotations

import copy
import pickle

import keras
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
