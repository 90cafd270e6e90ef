"""A step that is recorded once more: names, losses, and values that Python read."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.callbacks.flight._recorded import record_step, used_variables
from retrotape.callbacks.flight._variables import named_variables

X, Y = tf.ones([4, 3]), tf.ones([4, 1])


def small(optimizer="sgd"):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, name="out")], name="net")
    model.compile(optimizer, "mse")
    model.train_step((X, Y))  # makes the variables of metrics
    return model


def test_what_has_a_name_and_the_loss_is_that_of_the_step():
    model = small()
    before = named_variables(model.variables)
    expected = float(tf.reduce_mean((model(X) - Y) ** 2))
    recorded = record_step(model, (X, Y), before)
    assert {"loss", "x", "y", "net/out/kernel", "net/out/bias"} == recorded.names.keys()
    assert float(recorded.names["loss"]) == pytest.approx(expected)
    assert recorded.error is None
    assert recorded.remarks == []
    assert {id(variable) for variable in before.values()} <= {id(one) for one in used_variables(recorded.tape)}


def test_a_value_that_keras_reads_is_noticed_by_a_replay(tmp_path):
    """The optimizer skips a step in Python, below no line of the user's: another branch must not go unnoticed."""
    model = small(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    recorded = record_step(model, (X, Y), {})
    recorded.tape.save(tmp_path / "step.tape", recorded.names)
    tape = rt.load(tmp_path / "step.tape")
    tape.replay({"x": 2.0 * X})
    with pytest.raises(rt.errors.ReplayError, match="Python read a value"):
        tape.replay({"x": np.nan * X})


def test_a_loss_of_another_thread_is_not_that_of_the_step():
    class Own(keras.Model):
        """Its step does not call `compute_loss`, and waits for another thread, which differentiates too."""

        def train_step(self, data):
            x, y = data
            other = threading.Thread(target=differentiate)
            other.start()
            other.join()
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            tape.gradient(loss, self.trainable_variables)
            return {"loss": loss}

    elsewhere = []

    def differentiate():
        @tf.function
        def inside(v):
            with tf.GradientTape() as tape:
                tape.watch(v)
                z = v * v
            return tape.gradient(z, v)

        v = tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch(v)
            z = v * v
        elsewhere.append((float(tape.gradient(z, v)), float(inside(v))))

    inputs = keras.Input([3])
    model = Own(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd")
    expected = float(tf.reduce_mean((model(X) - Y) ** 2))
    recorded = record_step(model, (X, Y), {})
    assert float(recorded.names["loss"]) == pytest.approx(expected)
    assert elsewhere == [(6.0, 6.0)]


def test_an_error_is_kept_with_what_ran_before_it():
    model = small()
    recorded = record_step(model, (X, tf.ones([7, 2])), {})
    assert isinstance(recorded.error, Exception)
    assert "MatMul" in [eqn.op for eqn in recorded.tape.program.eqns]
    assert "x" in recorded.names


def test_numbers_without_a_seed_are_remarked_with_their_line():
    class Noise(keras.layers.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x))

    model = keras.Sequential([keras.Input([3]), Noise(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    (remark,) = record_step(model, (X, Y), {}).remarks
    assert f"RandomStandardNormal at {__file__}:" in remark
    assert "gives something else each time" in remark
