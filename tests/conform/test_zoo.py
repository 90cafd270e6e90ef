"""Training loops as people write them, with the stock tape and with ours: the same weights come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from conform.training import CLOSE, L, Step, as_function, batch, labels, same_weights

# ------------------------------------------------------------------ models with one loss


def _supervised(make_model: Callable[[], Any], shape: tuple[int, ...], traced: bool) -> Callable[[Any], Any]:
    """Return a loop over `shape`d batches of a classifier with three classes."""

    def make(tape_type: Any) -> tuple[list[Any], Step]:
        model = make_model()
        model(batch(0, *shape))
        # The large epsilon: the gradient of a key's bias is rounding error only, which Adam would blow up.
        optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
        optimizer.build(model.trainable_variables)
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def train(x, y):
            with tape_type() as tape:
                loss = loss_fn(y, model(x, training=True)) + sum(model.losses)
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        train = as_function(train, traced)
        return [model], lambda number: train(batch(number, *shape), labels(number, shape[0], 3))

    return make


def test_mlp(traced: bool) -> None:
    def model():
        return keras.Sequential([L.Dense(8, activation="gelu", kernel_regularizer="l2"), L.Dense(3)])

    same_weights(_supervised(model, (6, 4), traced), CLOSE[traced])


def test_convnet_with_batch_norm_and_dropout(traced: bool) -> None:
    def model():
        return keras.Sequential(
            [
                L.Conv2D(4, 3, padding="same"),
                L.BatchNormalization(),
                L.ReLU(),
                L.MaxPooling2D(),
                L.Dropout(0.3),
                L.Flatten(),
                L.Dense(3),
            ]
        )

    same_weights(_supervised(model, (4, 6, 6, 1), traced), CLOSE[traced])


def test_lstm(traced: bool) -> None:
    def model():
        return keras.Sequential([L.LSTM(4, return_sequences=True), L.LSTM(3, dropout=0.2), L.Dense(3)])

    same_weights(_supervised(model, (4, 5, 2), traced), CLOSE[traced])


def _transformer() -> keras.Model:
    x = keras.Input((5, 6))
    attended = L.MultiHeadAttention(2, 3, dropout=0.1)(x, x, use_causal_mask=True)
    y = L.LayerNormalization()(L.Add()([x, attended]))
    z = L.Dense(6)(L.Dropout(0.1)(L.Dense(12, activation="gelu")(y)))
    y = L.LayerNormalization()(L.Add()([y, z]))
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(y)))


def test_transformer(traced: bool) -> None:
    same_weights(_supervised(_transformer, (4, 5, 6), traced), CLOSE[traced])


def test_embedding_with_sparse_gradients(traced: bool) -> None:
    def make(tape_type: Any) -> tuple[list[Any], Step]:
        model = keras.Sequential([L.Embedding(5, 3), L.GlobalAveragePooling1D(), L.Dense(1)])
        model(tf.zeros([2, 3], tf.int32))
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)

        def train(ids):
            with tape_type() as tape:
                loss = tf.reduce_mean((model(ids, training=True) - 1.0) ** 2)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        train = as_function(train, traced)
        return [model], lambda number: train(tf.reshape(labels(number, 6, 5), [2, 3]))

    same_weights(make, CLOSE[traced])


class Sampling(L.Layer):
    """Draw from a Gaussian so that its mean and variance can be learnt."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(11)

    def call(self, mean, log_variance):
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seed)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


def test_variational_autoencoder(traced: bool) -> None:
    def make(tape_type: Any) -> tuple[list[Any], Step]:
        encoder = keras.Sequential([L.Dense(6, activation="relu"), L.Dense(4)])
        decoder = keras.Sequential([L.Dense(6, activation="relu"), L.Dense(5)])
        sample = Sampling()
        encoder(tf.zeros([1, 5]))
        decoder(tf.zeros([1, 2]))
        weights = encoder.trainable_variables + decoder.trainable_variables
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(weights)

        def train(x):
            with tape_type() as tape:
                mean, log_variance = tf.split(encoder(x, training=True), 2, axis=1)
                rebuilt = decoder(sample(mean, log_variance), training=True)
                kl = -0.5 * tf.reduce_sum(1.0 + log_variance - mean**2 - tf.exp(log_variance), 1)
                loss = tf.reduce_mean(tf.reduce_sum((x - rebuilt) ** 2, 1) + kl)
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        train = as_function(train, traced)
        return [encoder, decoder, sample], lambda number: train(batch(number, 4, 5))

    same_weights(make, CLOSE[traced])


# ------------------------------------------------------------------ under model.fit


def _fitted_model(tape_type: Any) -> Any:
    class Fitted(keras.Model):
        def __init__(self):
            super().__init__()
            self.layers_of_it = keras.Sequential(
                [L.Dense(6, activation="relu"), L.BatchNormalization(), L.Dropout(0.2), L.Dense(1)]
            )

        def call(self, x, training=False):
            return self.layers_of_it(x, training=training)

        def train_step(self, data):
            x, y = data
            with tape_type() as tape:
                loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
            grads = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
            return {"loss": loss}

    return Fitted()


def _fit(tape_type: Any, eagerly: bool) -> list[np.ndarray]:
    keras.utils.set_random_seed(5)
    model = _fitted_model(tape_type)
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", run_eagerly=eagerly)
    x = np.random.RandomState(0).normal(size=(40, 3)).astype("float32")
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=2, verbose=0)
    return [weight.numpy() for weight in model.variables]


@pytest.mark.parametrize("eagerly", [True, False], ids=["eager", "graph"])
def test_own_train_step_under_fit(eagerly: bool) -> None:
    tolerance = CLOSE[not eagerly]
    for ours, stock in zip(_fit(rt.Tape, eagerly), _fit(tf.GradientTape, eagerly), strict=True):
        np.testing.assert_allclose(ours, stock, rtol=tolerance, atol=tolerance)
