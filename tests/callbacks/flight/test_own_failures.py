"""A failure of the recorder itself does not end a training; one of the user's function does."""

from __future__ import annotations

import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from callbacks.flight.programs import state, training
from retrotape.callbacks.flight._fit import FitSession
from retrotape.callbacks.flight._loop import LoopSession
from retrotape.files.saved import Saved
from retrotape.report._reported import Reported


def fail(*args, **options):
    raise KeyError("a mistake of ours")


def small(**options):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def fit(model, *callbacks, **options):
    return model.fit(np.ones([40, 3], "f4"), np.ones([40, 1], "f4"), batch_size=4, verbose=0, callbacks=[*callbacks])


@pytest.mark.parametrize("method", ["_before_call", "_returned", "_check_loss"])
def test_any_failure_stops_the_recorder_and_not_the_training(tmp_path, monkeypatch, method):
    monkeypatch.setattr(FitSession, method, fail)
    model = small()
    with pytest.warns(RuntimeWarning, match=r"has stopped, and training goes on without it: KeyError: 'a mistake of"):
        fit(model, rt.FlightRecorder(tmp_path))
    assert int(model.optimizer.iterations.numpy()) == 10
    assert model.train_function.__module__.startswith("keras")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_a_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(LoopSession, "_adopt", fail)
    w, x = tf.Variable(1.0), tf.constant(2.0)
    recorder = rt.FlightRecorder(tmp_path)
    with pytest.warns(RuntimeWarning, match="goes on without it: KeyError"), recorder.step(x):
        w.assign_add(x)
    with recorder.step(x):
        w.assign_add(x)
    recorder.close()
    assert float(w) == 5.0


def test_the_users_exception_is_the_one_that_is_raised(tmp_path, monkeypatch):
    class Broken(keras.Model):
        def train_step(self, data):
            if self.optimizer.iterations.numpy() == 3:
                raise ZeroDivisionError("of the user")
            return super().train_step(data)

    inputs = keras.Input([3])
    model = Broken(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    monkeypatch.setattr(FitSession, "_look_back", fail)
    with (
        pytest.warns(RuntimeWarning, match="goes on without it: KeyError"),
        pytest.raises(ZeroDivisionError, match="of the user"),
    ):
        fit(model, rt.FlightRecorder(tmp_path))
    assert model.train_function.__module__.startswith("keras")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("owner", "method", "left", "text"),
    [
        (Reported, "report", [".tape", ".txt"], "There is no page about it: KeyError: 'a mistake of ours'."),
        (Saved, "save", [".txt"], "It could not be saved: KeyError: 'a mistake of ours'. There is no tape."),
    ],
    ids=["report", "save"],
)
@pytest.mark.filterwarnings("ignore:The flight recorder has stopped")
def test_what_can_be_written_of_a_crash_is_written(tmp_path, monkeypatch, owner, method, left, text):
    program = training(0)
    monkeypatch.setattr(FitSession, "_record_template", lambda self, layout: None)  # it saves a tape too
    monkeypatch.setattr(owner, method, fail)
    recorder = rt.FlightRecorder(tmp_path, every=10)
    program.fit(program.make(), callbacks=[recorder])
    (crash,) = recorder.crashes
    assert crash.step == program.bad
    assert text in crash.message
    assert sorted(path.suffix for path in tmp_path.iterdir()) == left
    text = next(tmp_path.glob("*.txt")).read_text()
    assert crash.message in text
    assert (f"retrotape nan {crash.tape} loss" in text) == (".tape" in left)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_function_of_the_logs_that_raises_says_what_there_is(tmp_path, compiled):
    model = small(run_eagerly=not compiled, metrics=["mae"])
    text = (
        r"The function on= of a FlightRecorder raised KeyError: 'lss'. It was given the logs \{'loss': [\d.e+-]+, "
        r"'mae': [\d.e+-]+\}. Use the names in them: `on=lambda logs: logs\['loss'\] > 100.0`\."
    )
    with pytest.raises(rt.errors.TapeUseError, match=text):
        fit(model, rt.FlightRecorder(tmp_path, on=lambda logs: logs["lss"] > 1))
    assert model.train_function.__module__.startswith("keras")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_reported", [True, False])
def test_a_function_of_what_a_loop_reports(tmp_path, is_reported):
    x = tf.constant(2.0)

    def run(recorder):
        with recorder.step(x) as step:
            step.report(**({"loss": x} if is_reported else {}))

    logs = "{'loss': 2}" if is_reported else "{}"
    with (
        rt.FlightRecorder(tmp_path, on=lambda logs: logs["lss"] > 1) as recorder,
        pytest.raises(rt.errors.TapeUseError, match=re.escape(f"raised KeyError: 'lss'. It was given the logs {logs}")),
    ):
        run(recorder)


def test_a_callback_that_changes_the_learning_rate_is_among_the_causes(tmp_path):
    class Decay(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.optimizer.learning_rate.assign(0.5**batch * 0.1)

    program = training(0)
    recorder = rt.FlightRecorder(tmp_path, every=100)
    program.fit(program.make(), callbacks=[recorder, Decay()])
    (crash,) = recorder.crashes
    assert (crash.step, crash.tape) == (None, None)
    assert "It could not be reproduced from the snapshot before step 1: the replay of step" in crash.message
    for cause in ("random numbers without a seed", "a callback", "that changes variables, also the learning rate"):
        assert cause in crash.message
    assert any(np.isnan(value).any() for value in state(recorder.model).values())


def test_a_folder_that_is_removed_does_not_end_the_training(tmp_path):
    folder = tmp_path / "crashes"
    model = small()
    remove = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch == 3 and shutil.rmtree(folder))
    data = np.ones([40, 3], "f4")
    data[20] = np.nan
    recorder = rt.FlightRecorder(folder)
    with pytest.warns(RuntimeWarning, match=r"goes on without it: there is no recording in .*/recording-.* any more"):
        model.fit(data, data[:, :1], batch_size=4, verbose=0, shuffle=False, callbacks=[recorder, remove])
    assert int(model.optimizer.iterations.numpy()) == 10
    assert recorder.crashes == []


def test_deterministic_ops_leave_no_global_generator(tmp_path, monkeypatch):
    def refuse():
        raise RuntimeError('"get_global_generator" cannot be called if determinism is enabled')

    monkeypatch.setattr(tf.random, "get_global_generator", refuse)
    logged = []
    fit(small(), rt.FlightRecorder(tmp_path), rt.callbacks.GradientLog(lambda _, step: logged.append(step), every=4))
    assert logged == [0, 4, 8]
