"""Requests that cannot be meant are refused, with what to type instead."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def small(**options):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


def fit(model, *callbacks):
    return model.fit(np.ones([4, 2]), np.ones([4, 1]), batch_size=2, verbose=0, callbacks=[*callbacks])


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        NotADirectoryError, match=r"'.*file' is a file; FlightRecorder needs a folder. Give another path."
    ):
        rt.FlightRecorder(str(tmp_path / "file"))


@pytest.mark.parametrize("folder", [None, 3, ""])
def test_the_folder_is_a_path(folder):
    with pytest.raises(TypeError, match=r"takes the path of a folder, got .*: `rt.FlightRecorder\('crashes'\)`"):
        rt.FlightRecorder(folder)


def test_a_url_is_no_folder():
    with pytest.raises(ValueError, match=r"writes to a local folder, got 's3://bucket/crashes'. Upload it afterwards"):
        rt.FlightRecorder("s3://bucket/crashes")


@pytest.mark.parametrize("number", [0, -1, 2.5, True, "3", None])
@pytest.mark.parametrize(("name", "usual"), [("keep", 3), ("every", 50)])
def test_numbers_are_above_zero(tmp_path, name, usual, number):
    text = f"{name}= takes a whole number above 0, got {number!r}: `{name}={usual}`."
    with pytest.raises(ValueError, match=re.escape(text)):
        rt.FlightRecorder(tmp_path, **{name: number})


def test_an_unknown_event(tmp_path):
    text = r"on= takes 'nonfinite', 'exception' or a function of the logs, got 'nonfinit'. Did you mean 'nonfinite'\?"
    with pytest.raises(ValueError, match=text):
        rt.FlightRecorder(tmp_path, on="nonfinit")
    with pytest.raises(ValueError, match=r"got 5. For example `on=lambda logs: logs\['loss'\] > 100.0`"):
        rt.FlightRecorder(tmp_path, on=5)


def test_nothing_is_created_for_a_request_that_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"keep"):
        rt.FlightRecorder(tmp_path / "new", keep=0)
    assert not (tmp_path / "new").exists()


def test_what_is_no_model(tmp_path):
    with pytest.raises(TypeError, match=r"is a callback for a Keras model, got Dense: `model.fit\(..., callbacks="):
        rt.FlightRecorder(tmp_path).set_model(keras.layers.Dense(1))


def test_a_train_function_of_the_users_own(tmp_path):
    class Own(keras.Model):
        def make_train_function(self, force=False):
            self.train_function = lambda iterator: {"loss": 0.0}

    inputs = keras.Input([2])
    model = Own(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    with pytest.raises(
        rt.errors.TapeUseError, match=r"Own has a train function of its own.*`with recorder.step\(batch\)"
    ):
        fit(model, rt.FlightRecorder(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_recorder_that_records_another_fit(tmp_path):
    recorder, other = rt.FlightRecorder(tmp_path), small()

    class Nested(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            fit(other, recorder)

    with pytest.raises(rt.errors.TapeUseError, match=r"records another `fit`. Use one for each"):
        fit(small(), recorder, Nested())


@pytest.mark.parametrize("batch", [np.ones([2]), (tf.ones([2]), [1.0]), "text"])
def test_a_batch_that_is_no_tensor(tmp_path, batch):
    with rt.FlightRecorder(tmp_path) as recorder:
        text = r"recorder.step takes tensors.*is of type .*Convert it before: `batch = tf.nest.map_structure"
        with pytest.raises(TypeError, match=text):
            recorder.step(batch)


def test_a_step_inside_a_function(tmp_path):
    recorder = rt.FlightRecorder(tmp_path)

    @tf.function(autograph=False)
    def step(x):
        with recorder.step(x):
            return x * 2.0

    with pytest.raises(rt.errors.TapeUseError, match=r"recorder.step was called inside a tf.function. Use it around"):
        step(tf.ones([2]))
    recorder.close()


def test_a_step_inside_a_step(tmp_path):
    x, recorder = tf.ones([2]), rt.FlightRecorder(tmp_path)
    inner = recorder.step(x)
    with recorder.step(x), pytest.raises(rt.errors.TapeUseError, match=r"is inside a step already. Leave it first"):
        inner.__enter__()
    recorder.close()


@pytest.mark.parametrize("value", [1.0, tf.ones([2]), "loss"])
def test_a_report_that_is_no_scalar(tmp_path, value):
    x = tf.ones([2])
    with (
        rt.FlightRecorder(tmp_path) as recorder,
        recorder.step(x) as step,
        pytest.raises(TypeError, match=r"report takes tensors that are scalars, got loss=.*`step.report\(loss=loss\)"),
    ):
        step.report(loss=value)
