"""Names on a tape are unique, whatever variables and the parts of a batch are called."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.callbacks.flight._batches import named_batch


@pytest.mark.parametrize("name", ["x", "y", "sample_weight", "loss", "rate", "w"])
def test_a_variable_may_have_the_name_of_something_else(tmp_path, name):
    w, taken = tf.Variable([0.5, 0.5], name=name), name if name == "w" else f"{name}'2"
    with rt.FlightRecorder(tmp_path) as recorder:
        for number in range(40):
            x, y = tf.constant([1.0, 2.0 + number]), tf.constant(27.0 - number)
            with recorder.step((x, y)) as step:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(w * x * tf.sqrt(y))
                w.assign_sub(0.01 * tape.gradient(loss, w))
                step.report(loss=loss, rate=tf.constant(0.5) * y)
    (crash,) = recorder.crashes
    assert crash.step == 28
    found = rt.load(crash.tape)
    np.testing.assert_array_equal(found["x"], [1.0, 30.0])
    assert float(found["y"]) == -1.0
    assert np.isnan(found["loss"].numpy())
    assert float(found["rate"]) == -0.5
    expected = np.array([0.5, 0.5], "f")
    for number in range(28):
        expected -= np.float32(0.01) * np.array([1.0, 2.0 + number], "f") * np.sqrt(np.float32(27.0 - number))
    np.testing.assert_allclose(found.versions(taken)[0].value, expected, rtol=1e-4)


def test_parts_of_a_batch_whose_names_are_alike():
    batch = named_batch(({"a/b": tf.constant(1.0), "a": {"b": tf.constant(2.0)}},))
    assert batch.names == ("x/a/b", "x/a/b'2")
    spec = batch.spec()
    packed = spec.packed({"x/a/b": np.float32(3.0), "x/a/b'2": np.float32(4.0)})
    assert (float(packed[0]["a"]["b"]), float(packed[0]["a/b"])) == (3.0, 4.0)


def test_they_are_not_mixed_up_when_steps_run_again(tmp_path):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(tf.concat([x["a/b"], tf.math.log(x["a"]["b"])], 1))

    model = Model()
    model.compile("sgd", "mse")
    a, b = np.random.default_rng(0).normal(size=(2, 64, 4)).astype("f")
    b = np.abs(b) + 0.1
    b[37] = 0.0
    data = tf.data.Dataset.from_tensor_slices(({"a/b": a, "a": {"b": b}}, a[:, :1])).batch(8)
    recorder = rt.FlightRecorder(tmp_path)
    model.fit(data, verbose=0, shuffle=False, callbacks=[recorder])
    (crash,) = recorder.crashes
    assert (crash.step, crash.nonfinite.op) == (4, "Log")
    np.testing.assert_array_equal(rt.load(crash.tape)["x/a/b"], b[32:40])
    np.testing.assert_array_equal(rt.load(crash.tape)["x/a/b'2"], a[32:40])


def test_variables_of_a_model_do_not_take_the_names_of_its_batch(tmp_path):
    outside = tf.Variable(1.0, name="x")

    class Scaled(keras.layers.Layer):
        def call(self, x):
            return x * tf.math.log(outside)

    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(2), Scaled()])
    model.compile("sgd", "mse")
    lower = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: outside.assign(1.0 - epoch))
    recorder = rt.FlightRecorder(tmp_path)
    model.fit(
        np.ones([8, 2], "f"), np.ones([8, 2], "f"), batch_size=4, epochs=2, verbose=0, callbacks=[lower, recorder]
    )
    (crash,) = recorder.crashes
    assert crash.step == 2
    tape = rt.load(crash.tape)
    assert tape["x"].shape == [4, 2]
    assert float(tape.value("x'2")) == 0.0
