"""`fit` with steps that are played back is `fit` with `run_eagerly=True`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

X = np.random.default_rng(0).normal(size=(40, 8)).astype("float32")
Y = np.random.default_rng(1).integers(0, 4, 40)


class Penalized(keras.Model):
    """A custom `train_step`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop = keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3)
        self.norm, self.out = keras.layers.BatchNormalization(), keras.layers.Dense(4, "softmax")
        self.weight = 0.01

    def call(self, x, training=False):
        return self.out(self.norm(self.drop(self.hidden(x), training=training), training=training))

    def train_step(self, data):
        x, y = data
        with rt.Tape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            loss += self.weight * tf.add_n([tf.nn.l2_loss(w) for w in self.trainable_variables])
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, self(x, training=False))
        return {metric.name: metric.result() for metric in self.metrics}


def sequential() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input([8]), layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(4, "softmax")]
    )


def compiled(make: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = make()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], run_eagerly=True)
    return model


@pytest.mark.parametrize("make", [sequential, Penalized])
def test_history_and_weights_are_the_same(make: Any):
    plain, played = compiled(make), rt.keras.playback(compiled(make), strict=True)
    histories = []
    for model in (plain, played):
        keras.utils.set_random_seed(2)
        stop = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
        fit = model.fit(X, Y, batch_size=16, epochs=3, verbose=0, validation_data=(X, Y), callbacks=[stop])
        histories.append(fit.history)
    assert histories[0] == histories[1]
    for one, other in zip(plain.variables, played.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(plain.predict(X, verbose=0), played.predict(X, verbose=0))
    assert plain.evaluate(X, Y, verbose=0) == played.evaluate(X, Y, verbose=0)
    assert sum(one.plays for one in played.train_step.recordings()) >= 4
    assert played.train_step.why_not_compiled() is None


def test_a_setting_of_the_model_is_noticed():
    plain, played = compiled(Penalized), rt.keras.playback(compiled(Penalized), strict=True)
    for model in (plain, played):
        keras.utils.set_random_seed(3)
        for weight in (0.01, 1.0):
            model.weight = weight
            model.fit(X, Y, batch_size=20, epochs=2, verbose=0)
    for one, other in zip(plain.variables, played.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_asked_twice_it_is_compiled_once():
    model = rt.keras.playback(rt.keras.playback(compiled(sequential)))
    model.fit(X, Y, batch_size=20, verbose=0)
    assert len(model.train_step.recordings()) == 1
    assert not isinstance(model.train_step.__wrapped__, rt.CompiledStep)


def test_errors():
    with pytest.raises(TypeError, match=r"playback takes a Keras model on the TensorFlow backend, got int"):
        rt.keras.playback(3)
    model = sequential()
    model.compile("sgd", "mse")
    with pytest.raises(rt.errors.TapeUseError, match=r"First call `model.compile\(..., run_eagerly=True\)`"):
        rt.keras.playback(model)
