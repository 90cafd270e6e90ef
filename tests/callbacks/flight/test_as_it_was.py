"""After training, however it ended, TensorFlow, Keras and the model are as they were."""

from __future__ import annotations

import gc
import os
import subprocess
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from callbacks.flight.programs import training
from helpers.processes import PYTHON
from helpers.untouched import touched
from retrotape.callbacks.flight._log import Log

X, Y = np.ones([40, 3], "f4"), np.ones([40, 1], "f4")


def small(**options):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def fit(model, *callbacks, **options):
    return model.fit(X, Y, batch_size=4, verbose=0, callbacks=[*callbacks], **options)


class Raising(keras.callbacks.Callback):
    def __init__(self, method, error=RuntimeError):
        super().__init__()
        setattr(self, method, self._raise)
        self._error = error

    def _raise(self, *args, **options):
        raise self._error("from another callback")


def everything(model) -> dict[str, object]:
    stock = {name: vars(tf.GradientTape)[name] for name in ("gradient", "__enter__")}
    return {**vars(model), **stock, "touched": touched()}


def test_after_a_training_without_trouble(tmp_path):
    model = small()
    fit(model)
    before = everything(model)
    fit(model, rt.FlightRecorder(tmp_path))
    after = everything(model)
    assert {name for name in after if after[name] is not before.get(name)} <= {"touched", "history", "_metrics"}
    assert after["touched"] == before["touched"] == []
    assert list(tmp_path.iterdir()) == []


def test_after_a_crash(tmp_path):
    program = training(0)
    model = program.make()
    recorder = rt.FlightRecorder(tmp_path, every=10)
    plain = program.make()
    program.fit(plain, 2)
    program.fit(model, callbacks=[recorder])
    assert len(recorder.crashes) == 1
    assert set(vars(model)) == set(vars(plain))
    assert model.train_function.__module__.startswith("keras")
    assert touched() == []
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".html", ".tape", ".txt"]


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("on_train_batch_end", KeyboardInterrupt),
        ("on_epoch_end", RuntimeError),
        ("on_test_end", KeyboardInterrupt),
        pytest.param("on_train_batch_end", RuntimeError, marks=pytest.mark.slow),
        pytest.param("on_epoch_end", KeyboardInterrupt, marks=pytest.mark.slow),
        pytest.param("on_test_end", RuntimeError, marks=pytest.mark.slow),
    ],
)
def test_after_an_exception_of_another_callback(tmp_path, method, error):
    model = small()
    try:
        fit(model, rt.FlightRecorder(tmp_path), Raising(method, error), validation_data=(X, Y))
    except error as raised:
        assert str(raised) == "from another callback"  # noqa: PT017
    gc.collect()
    assert model.train_function.__module__.startswith("keras")
    assert list(tmp_path.iterdir()) == []
    assert touched() == []


def test_after_an_exception_of_another_callback_that_someone_holds(tmp_path):
    model = small()
    recorder = rt.FlightRecorder(tmp_path)
    with pytest.raises(RuntimeError) as held:
        fit(model, recorder, Raising("on_epoch_end"))
    plain = fit(model).history  # the recorder is not among its callbacks
    assert list(tmp_path.iterdir()) == []
    assert model.train_function.__module__.startswith("keras")
    assert recorder.crashes == []
    assert plain["loss"]
    del held


def test_after_an_interrupt_in_a_step(tmp_path):
    class Interrupted(keras.Model):
        def train_step(self, data):
            if self.optimizer.iterations.numpy() == 3:
                raise KeyboardInterrupt
            return super().train_step(data)

    inputs = keras.Input([3])
    model = Interrupted(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", run_eagerly=True)
    recorder = rt.FlightRecorder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(model, recorder)
    assert model.train_function.__module__.startswith("keras")
    assert recorder.crashes == []
    assert list(tmp_path.iterdir()) == []


def test_after_trainings_on_several_threads(tmp_path):
    gradient, crashes = tf.GradientTape.gradient, {}

    def train(number):
        program, recorder = training(4 * number), rt.FlightRecorder(tmp_path / str(number), every=10)
        program.fit(program.make(), callbacks=[recorder])
        crashes[number] = [crash.step for crash in recorder.crashes] == [program.bad]

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert crashes == {0: True, 1: True, 2: True}
    assert tf.GradientTape.gradient is gradient
    assert touched() == []


def test_evaluate_and_predict_are_left_alone(tmp_path):
    model, recorder = small(), rt.FlightRecorder(tmp_path)
    model.evaluate(X, Y, verbose=0, callbacks=[recorder])
    model.predict(X, verbose=0, callbacks=[recorder])
    assert model.train_function is None
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_stops_the_recorder_and_not_the_training(tmp_path, monkeypatch):
    model, calls = small(), []

    def full(self, step, layout, arrays):
        calls.append(step)
        if step == 5:
            raise OSError(28, "No space left on device")
        return write(self, step, layout, arrays)

    write = Log.batch
    monkeypatch.setattr(Log, "batch", full)
    with pytest.warns(
        RuntimeWarning, match=r"has stopped, and training goes on without it: a batch could not be written.*No space"
    ):
        history = fit(model, rt.FlightRecorder(tmp_path))
    assert calls == [0, 1, 2, 3, 4, 5]
    assert int(model.optimizer.iterations.numpy()) == 10
    assert np.isfinite(history.history["loss"]).all()
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_the_program_leaves_no_recording(tmp_path):
    program = f"""
import retrotape as rt, tensorflow as tf
recorder = rt.FlightRecorder({str(tmp_path)!r})
w = tf.Variable(1.0)
for scale in (1.0, 1.0, 0.0):
    x = tf.constant(scale)
    with recorder.step(x) as step:
        step.report(loss=w * tf.math.log(x))
"""
    done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert "step 2: the loss is not finite. Log at <string>:8" in done.stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"crash-0001-step-2.{kind}" for kind in ("html", "tape", "txt")]


def test_the_folder_is_where_it_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder = rt.FlightRecorder("crashes")
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    fit(small(), recorder)
    assert (tmp_path / "crashes").is_dir()
