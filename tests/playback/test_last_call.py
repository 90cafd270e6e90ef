"""A compiled step is no black box: its last call is a tape."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from playback.alike import plays


def trained():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input([3]), keras.layers.Dense(4, "tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    def step(x):
        with rt.Tape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
        return loss, grads

    return step, model


def batches():
    return [tf.constant(np.random.default_rng(n).normal(size=(4, 3)), tf.float32) for n in range(5)]


def test_gradients_of_the_last_call_are_those_that_it_computed():
    step, model = trained()
    compiled = rt.compile(step, strict=True)
    for x in batches():
        loss, grads = compiled(x)
        tape = compiled.tape
        np.testing.assert_array_equal(tape.value(loss), loss)
        for found, expected in zip(tape.gradient(loss, model.trainable_variables), grads, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
        assert tape.gradient(loss, x).shape == x.shape
    assert plays(compiled) == [4]


def test_why_and_summary():
    step, model = trained()
    compiled = rt.compile(step)
    unused = tf.Variable(1.0, name="unused")
    for x in batches():
        loss, _ = compiled(x)
    assert compiled.why(loss, model.trainable_variables[0]).verdict is rt.Verdict.CONNECTED
    assert compiled.why(loss, unused).verdict is rt.Verdict.SOURCE_NOT_RECORDED
    assert "dense" in str(compiled.summary())


def test_the_op_that_made_the_nan_from_the_state_before_the_call():
    w = tf.Variable(3.0)

    @rt.compile
    def step(x):
        loss = tf.math.log(w) * x
        w.assign_sub(1.0)
        return loss

    for _ in range(3):
        loss = step(tf.constant(1.0))
        assert step.first_nonfinite() is None
    loss = step(tf.constant(1.0))
    assert np.isinf(loss)
    found = step.first_nonfinite()
    assert found is not None
    assert found.op == "Log"
    assert "test_last_call.py" in str(found)
    assert float(w) == -1.0  # it was only looked at


def test_variables_that_changed_after_the_call_are_as_they_were():
    w, frozen = tf.Variable(2.0), tf.Variable(3.0)
    step = rt.compile(lambda x: w.assign_add(x) * frozen)
    for _ in range(3):
        y = step(tf.constant(1.0))
    frozen.assign(100.0)
    w.assign(100.0)
    assert float(step.tape.value(y)) == 15.0


def test_what_has_no_tape():
    step = rt.compile(lambda x: x * 2.0, keep_state=False)
    with pytest.raises(
        rt.errors.TapeUseError, match=r"'<lambda>' has no tape of its last call: it has not been called"
    ):
        _ = step.tape
    for _ in range(2):
        step(tf.constant(1.0))
    with pytest.raises(rt.errors.TapeUseError, match=r"was not kept. Use `rt.compile\(step, keep_state=True\)`"):
        _ = step.tape
    tf.random.set_seed(None)
    drawn = rt.compile(lambda x: x * tf.random.uniform([]))
    for _ in range(2):
        drawn(tf.constant(1.0))
    with pytest.raises(rt.errors.TapeUseError, match=r"ran RandomUniform, whose random numbers are not kept"):
        _ = drawn.tape


def test_old_arguments_and_values_are_released():
    import gc
    import weakref

    step = rt.compile(lambda x: x * 2.0)
    x = tf.ones([1000])
    dead = weakref.ref(x)
    step(x)
    del x
    step(tf.ones([1000]))
    gc.collect()
    assert dead() is None


def test_the_table_of_recordings():
    step = rt.compile(lambda x, k: x * k)
    for k in (1.0, 2.0, 1.0):
        step(tf.constant([1.0, 2.0]), k)
    text = str(step.recordings())
    assert text.splitlines()[0].split("  ")[0] == "arguments"
    assert "(float32[2], 1.0)" in text
    assert "first call with such arguments" in text
    html = step.recordings()._repr_html_()
    assert html.startswith("<table")
    assert html.count("<tr") == 3
    assert "(float32[2], 2.0)" in html
    assert [one.plays for one in step.recordings()] == [1, 0]
    step.forget()
    assert len(step.recordings()) == 0


def test_the_report():
    step = rt.compile(lambda x: x * 2.0)
    assert "not played back: it has not been called" in step.report()
    for _ in range(3):
        step(tf.constant(1.0))
    text = step.report()
    assert text.startswith("1 recording, played back 2 times\narguments")
    assert "Mul" in text


@pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
def test_a_step_that_has_forgotten_is_new():
    step = rt.compile(lambda x: x + 1.0)
    for number in range(1, 14):
        step(tf.zeros([number]))
    step.forget()
    step(tf.zeros([50]))
    assert len(step.recordings()) == 1
