"""Custom loops: the step that went wrong is replayed on the ops of one that was recorded."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

STEPS, BAD = 40, 27


def batches(bad=BAD, steps=STEPS, size=4):
    draw = np.random.default_rng(0)
    for step in range(steps):
        x = draw.normal(size=[size, 3]).astype("f4")
        yield tf.constant(x * (step != bad)), tf.constant(draw.normal(size=[size, 1]).astype("f4"))


def make_step(compiled: bool):
    keras.utils.set_random_seed(1)
    first, last = keras.layers.Dense(4, "tanh", name="first"), keras.layers.Dense(1, name="last")
    model = keras.Sequential([keras.Input([3]), first, keras.layers.Dropout(0.3), last], name="net")
    optimizer = keras.optimizers.Adam(0.01)

    def step(x, y):
        with tf.GradientTape() as tape:
            scale = tf.math.log(tf.reduce_max(tf.abs(x)))
            loss = tf.reduce_mean((model(x, training=True) * scale - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return (tf.function(step) if compiled else step), model


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_very_step_is_found(tmp_path, compiled):
    step_on, _ = make_step(compiled)
    with rt.FlightRecorder(tmp_path, every=10) as recorder:
        for x, y in batches():
            with recorder.step((x, y)) as step:
                step.report(loss=step_on(x, y))
    (crash,) = recorder.crashes
    assert (crash.step, crash.nonfinite.op, crash.nonfinite.cause.name) == (BAD, "Log", "LOG_OF_ZERO")
    assert crash.nonfinite.frame.file == __file__
    tape = rt.load(crash.tape)
    np.testing.assert_array_equal(tape["x"], np.zeros([4, 3]))
    assert not np.isfinite(tape["loss"])
    plain, same = make_step(compiled)
    for x, y in batches(steps=BAD):
        plain(x, y)
    for variable in same.trainable_variables:
        found = tape.versions(variable.path)[0].value
        np.testing.assert_allclose(found, variable.numpy(), rtol=1e-5, atol=1e-6, err_msg=variable.path)


def test_training_is_the_same_as_without_it(tmp_path):
    states = []
    for recorder in (None, rt.FlightRecorder(tmp_path, every=5)):
        step_on, model = make_step(False)
        for x, y in batches(bad=-1):
            if recorder is None:
                step_on(x, y)
                continue
            with recorder.step((x, y)):
                step_on(x, y)
        states.append([variable.numpy() for variable in model.variables])
    recorder.close()
    for plain, recorded in zip(*states, strict=True):
        np.testing.assert_array_equal(recorded, plain)
    assert list(tmp_path.iterdir()) == []


def test_without_a_report_the_state_is_looked_at_and_that_is_said(tmp_path):
    step_on, _ = make_step(False)
    with rt.FlightRecorder(tmp_path, every=10) as recorder:
        for x, y in batches():
            with recorder.step((x, y)):
                step_on(x, y)
    (crash,) = recorder.crashes
    assert crash.step == BAD
    assert "a variable is no longer finite" in crash.message
    assert "Nothing was reported to compare a replay with: call `step.report(loss=loss)`" in crash.message


def test_a_print_of_the_loss_does_no_harm(tmp_path, capsys):
    step_on, _ = make_step(False)
    with rt.FlightRecorder(tmp_path, every=10) as recorder:
        for x, y in batches():
            with recorder.step((x, y)) as step:
                loss = step_on(x, y)
                print(float(loss))
                step.report(loss=loss)
    assert recorder.crashes[0].step == BAD
    assert "branch" not in recorder.crashes[0].message


def test_what_is_random_without_a_seed_is_not_named(tmp_path):
    w = tf.Variable(1.0)
    with rt.FlightRecorder(tmp_path, every=100) as recorder:
        for number in range(20):
            x = tf.constant(float(number != 15))
            with recorder.step(x) as step:
                loss = w * tf.math.log(x) + tf.random.normal([])
                w.assign_sub(0.1 * loss)
                step.report(loss=loss)
    (crash,) = recorder.crashes
    assert (crash.step, crash.tape) == (None, None)
    assert "step 15: the loss is not finite. Step 1 cannot be replayed: RandomStandardNormal at " in crash.message
    assert "gives something else each time, so that a replay is not what ran" in crash.message


def test_random_numbers_without_a_report_name_no_step(tmp_path):
    """With nothing to compare, a replay that draws other numbers could go wrong at any step."""
    w = tf.Variable(1.0)
    with rt.FlightRecorder(tmp_path, every=100) as recorder:
        for number in range(30):
            x = tf.constant(float(number != 7))
            with recorder.step(x):
                w.assign_add(tf.math.log(x) + tf.random.uniform([]))
    (crash,) = recorder.crashes
    assert (crash.step, crash.tape) == (None, None)
    assert "Step 1 cannot be replayed: RandomUniform at " in crash.message


def test_a_replay_in_which_nothing_goes_wrong_names_no_step(tmp_path):
    w = tf.Variable(1.0)
    with rt.FlightRecorder(tmp_path, every=100) as recorder:
        for number in range(20):
            x = tf.constant(float(number))
            with recorder.step(x):
                w.assign_add(0.1 * x)
                if number == 4:  # a branch that the recorded step has not taken
                    w.assign(np.nan)
    (crash,) = recorder.crashes
    assert (crash.step, crash.tape) == (None, None)
    assert "one of the steps 1 to 19: a variable is no longer finite." in crash.message
    assert "It could not be reproduced: no step of the replay went wrong. The likeliest causes: " in crash.message
    assert [path.name for path in tmp_path.iterdir()] == ["crash-0001.txt"]


def test_a_branch_that_was_not_recorded_is_noticed(tmp_path):
    w = tf.Variable(1.0)
    with rt.FlightRecorder(tmp_path, every=100) as recorder:
        for number in range(20):
            x = tf.constant(float(number))
            with recorder.step(x) as step:
                loss = w * x
                if number >= 10:  # nothing on the tape depends on it
                    loss = loss * tf.math.log(x - 15.0)
                w.assign_sub(0.001 * tf.where(tf.math.is_nan(loss), 0.0, loss))
                step.report(loss=loss)
    (crash,) = recorder.crashes
    assert crash.tape is None
    assert "The replay of step 10 gave loss" in crash.message


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_first_steps_too(tmp_path, at):
    step_on, _ = make_step(False)
    with rt.FlightRecorder(tmp_path, every=10) as recorder:
        for x, y in batches(bad=at, steps=6):
            with recorder.step((x, y)) as step:
                step.report(loss=step_on(x, y))
    assert recorder.crashes[0].step == at
    assert recorder.crashes[0].nonfinite.op == "Log"


@pytest.mark.parametrize("at", [0, 5])
def test_an_exception_passes_and_leaves_a_tape(tmp_path, at):
    w = tf.Variable(2.0)

    def train(recorder):
        for number in range(9):
            x = tf.constant(float(number))
            with recorder.step(x) as step:
                loss = w * x
                step.report(loss=loss)
                w.assign_sub(0.1 * loss * (1 if number < at else 1 // (number - at)))

    with rt.FlightRecorder(tmp_path) as recorder:
        with pytest.raises(ZeroDivisionError):
            train(recorder)
        (crash,) = recorder.crashes
    assert f"step {at}: it raised ZeroDivisionError: integer division or modulo by zero." in crash.message
    assert (crash.step, float(rt.load(crash.tape)["x"])) == (at, at)


def test_batches_of_several_shapes(tmp_path):
    w = tf.Variable(1.0)
    with rt.FlightRecorder(tmp_path, every=100) as recorder:
        for number in range(30):
            x = tf.fill([1 + number % 3], float(number != 25))
            with recorder.step({"value": x}) as step:
                loss = tf.reduce_sum(w * tf.math.log(x))
                w.assign_add(0.1)
                step.report(loss=loss)
    assert recorder.crashes[0].step == 25
    np.testing.assert_array_equal(rt.load(recorder.crashes[0].tape)["x/value"], [0.0, 0.0])


def test_more_shapes_than_are_recorded(tmp_path):
    w = tf.Variable(1.0)
    with rt.FlightRecorder(tmp_path, every=100) as recorder:
        for number in range(30):
            x = tf.fill([1 + number % 15], float(number != 28))
            with recorder.step(x) as step:
                loss = tf.reduce_sum(w * tf.math.log(x))
                w.assign_add(0.1)
                step.report(loss=loss)
    (crash,) = recorder.crashes
    assert "Step 8 cannot be replayed: no step was recorded for batches of its shape" in crash.message
    assert "step 28: the loss is not finite" in crash.message
    assert "The tape is of step 7" in crash.message
    assert crash.step is None
    assert crash.tape.endswith("crash-0001.tape")


def test_a_predicate_of_what_is_reported(tmp_path):
    w = tf.Variable(1.0)
    with rt.FlightRecorder(tmp_path, on=lambda logs: logs["loss"] > 50.0) as recorder:
        for number in range(20):
            x = tf.constant(float(number))
            with recorder.step(x) as step:
                loss = w * x
                w.assign_add(0.5)
                step.report(loss=loss)
    (crash,) = recorder.crashes
    first = next(number for number in range(20) if (1.0 + 0.5 * number) * number > 50.0)
    assert crash.step == first
    assert float(rt.load(crash.tape)["loss"]) == (1.0 + 0.5 * first) * first


def test_crashes_are_kept_up_to_a_number(tmp_path):
    w = tf.Variable(1.0)
    for _ in range(4):
        with rt.FlightRecorder(tmp_path, keep=2) as recorder:
            x = tf.constant(0.0)
            with recorder.step(x) as step:
                step.report(loss=w * tf.math.log(x))
    names = sorted(path.name for path in tmp_path.glob("crash*"))
    assert names == [f"crash-000{number}-step-0.{kind}" for number in (3, 4) for kind in ("html", "tape", "txt")]
