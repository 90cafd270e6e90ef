"""What counts as a witness that a value left TensorFlow, and what does not."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest
import rich
import tensorflow as tf

import retrotape as rt
from retrotape.diagnose.why import Verdict

RANDOM = np.random.default_rng(5)
DATA = RANDOM.random(8, np.float32)  # not typed in the code that uses it
OTHER = RANDOM.random(8, np.float32)


def asked(make):
    """Return what is said of a target with another variable, and a constant that is made of what Python saw."""
    w, v = tf.Variable(DATA, name="w"), tf.Variable(3.0, name="v")
    with rt.Tape() as tape:
        seen = (w * 2.0).numpy()
        loss = tf.reduce_sum(v * tf.constant(make(seen)))
    return tape.why(loss, w)


@pytest.mark.parametrize("make", [np.tanh, lambda seen: 1.0 - seen, lambda seen: np.clip(seen, 0.2, 1.5) / 7.0])
def test_values_that_rise_and_fall_with_those_that_were_seen(make):
    found = asked(make)
    assert (found.verdict, found.cut.op) == (Verdict.LEFT_TENSORFLOW, "numpy()")
    assert found.detail.endswith(", and is a monotonic function of the values that Python read.")
    assert found.remedy == ""  # the verdict's own, without an if


@pytest.mark.parametrize(
    "make",
    [lambda seen: OTHER, lambda seen: np.sort(OTHER), lambda seen: np.round(seen / 9.0) + 0.5],
    ids=["another", "sorted", "the_same_everywhere"],
)
def test_values_of_the_same_shape_are_no_witness(make):
    """One that was seen for a log, and then another batch of the same shape."""
    found = asked(make)
    assert found.verdict is Verdict.NO_PATH
    assert "Python read a value computed from the source, with `numpy`, at " in found.detail


def test_what_was_sorted_already_is_no_witness():
    w, v = tf.Variable(np.sort(DATA)), tf.Variable(3.0)
    with rt.Tape() as tape:
        (w * 2.0).numpy()
        loss = tf.reduce_sum(v * tf.constant(np.sort(OTHER)))
    assert tape.why(loss, w).verdict is Verdict.NO_PATH


def test_a_look_is_no_witness_where_the_target_comes_from_an_input():
    w, x = tf.Variable(DATA), tf.constant(OTHER)
    with rt.Tape() as tape:
        float(tf.reduce_sum(w))
        loss = tf.reduce_sum(x * tf.constant(RANDOM.random(8, np.float32)))
    assert tape.why(loss, w).verdict is Verdict.NO_PATH


def test_a_number_that_stands_in_the_line_is_no_witness():
    w, v = tf.Variable(1.0), tf.Variable(3.0)
    with rt.Tape() as tape:
        y = w * 2.0
        loss = v * 2.0 if float(y) > 0.5 else v * 1.0
    assert tape.why(loss, w).verdict is Verdict.NO_PATH


def test_a_number_right_after_it_was_seen():
    w, v = tf.Variable(1.0), tf.Variable(3.0)
    with rt.Tape() as tape:
        y = w * 2.0
        loss = v * float(y)
    found = tape.why(loss, w)
    assert (found.verdict, found.cut.op) == (Verdict.LEFT_TENSORFLOW, "float()")
    assert found.remedy.startswith(
        "If it was computed from the values that Python read, keep the computation in TensorFlow"
    )


def test_numbers_of_the_program_are_not_told_about():
    """An epsilon is made while recording, by no op."""
    v, layer = tf.Variable(1.0), tf.keras.layers.BatchNormalization()
    layer.build([None, 2])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([3, 2]), training=True))
        v * 2.0
    assert tape.why(loss, v).detail == ""


def test_a_branch_in_a_function_is_not_python_that_looks():
    w, v = tf.Variable(3.0), tf.Variable(2.0)

    @tf.function
    def chosen():
        if w > 0.0:
            return v**2
        return v

    with rt.Tape() as tape:
        loss = chosen()
    found = tape.why(loss, w)
    assert found.detail.startswith(
        "A value computed from the source decided what ran, in a branch or a loop in a tf.function"
    )
    assert "Python read" not in found.detail


def test_a_source_that_was_read_elsewhere():
    w, made = tf.Variable(DATA), []
    with rt.Tape() as tape:
        tf.zeros([]) + 1.0
        worker = threading.Thread(target=lambda: made.append(w * 2.0))
        worker.start()
        worker.join()
        loss = tf.reduce_sum(made[0])
    found = tape.why(loss, w)
    assert found.verdict is Verdict.SOURCE_NOT_RECORDED
    assert "The target depends on a float32[8] that was made after recording began, but not by an op" in found.detail


def test_a_source_that_was_read_before_a_reset():
    w = tf.Variable(DATA)
    with rt.Tape() as tape:
        tf.zeros([]) + 1.0
        tape.reset()
        tf.zeros([]) + 1.0
        hidden = tf.constant(OTHER)
        loss = tf.reduce_sum(hidden)
    assert "or before a `reset`" in tape.why(loss, w).detail


# ------------------------------------------------------------------ the object


def test_an_explanation_is_shown_as_its_text(capsys):
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.stop_gradient(w)[0:1])
    found = tape.why(loss, w)
    assert repr(found) == str(found)
    assert pickle.loads(pickle.dumps(found)) == found
    rich.print(found)
    assert "tf.stop_gradient(w)[0:1]" in capsys.readouterr().out.replace("\n", "")
