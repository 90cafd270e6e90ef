"""Training loops as people write them, with the stock tape and with ours: the same weights come out.

A model trains with each tape from the same seed, batch after batch; nothing else differs between the runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

STEPS = 20
L = keras.layers
Step = Callable[[int], Any]
# Bit for bit in eager code. Inside a function TensorFlow rewrites the graph, and sums may change their order.
_CLOSE = {False: 0.0, True: 1e-5}


def _batch(step: int, *shape: int) -> tf.Tensor:
    return tf.constant(np.random.RandomState(step).normal(size=shape), tf.float32)


def _labels(step: int, count: int, classes: int) -> tf.Tensor:
    return tf.constant(np.random.RandomState(1000 + step).randint(classes, size=count))


def _trained(make: Callable[[Any], tuple[list[Any], Step]], tape_type: Any) -> list[np.ndarray]:
    keras.utils.set_random_seed(7)
    models, step = make(tape_type)
    before = [weight.numpy() for model in models for weight in model.trainable_variables]
    for number in range(STEPS):
        step(number)
    after = [weight.numpy() for model in models for weight in model.trainable_variables]
    changed = [not np.array_equal(one, other) for one, other in zip(before, after, strict=True)]
    assert sum(changed) >= 0.8 * len(changed), "nothing was learnt"
    return [weight.numpy() for model in models for weight in model.variables]


def _same_weights(make: Callable[[Any], tuple[list[Any], Step]], tolerance: float) -> None:
    stock = _trained(make, tf.GradientTape)
    ours = _trained(make, rt.Tape)
    assert len(ours) == len(stock)
    for one, other in zip(ours, stock, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def _traced(function: Callable[..., Any], traced: bool) -> Callable[..., Any]:
    return tf.function(function) if traced else function


@pytest.fixture(params=[False, True], ids=["eager", "function"])
def traced(request: pytest.FixtureRequest) -> bool:
    return request.param


# ------------------------------------------------------------------ models with one loss


def _supervised(make_model: Callable[[], Any], shape: tuple[int, ...], traced: bool) -> Callable[[Any], Any]:
    """Return a loop over `shape`d batches of a classifier with three classes."""

    def make(tape_type: Any) -> tuple[list[Any], Step]:
        model = make_model()
        model(_batch(0, *shape))
        # The large epsilon: the gradient of a key's bias is rounding error only, which Adam would blow up.
        optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
        optimizer.build(model.trainable_variables)
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def train(x, y):
            with tape_type() as tape:
                loss = loss_fn(y, model(x, training=True)) + sum(model.losses)
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        train = _traced(train, traced)
        return [model], lambda number: train(_batch(number, *shape), _labels(number, shape[0], 3))

    return make


def test_mlp(traced: bool) -> None:
    def model():
        return keras.Sequential([L.Dense(8, activation="gelu", kernel_regularizer="l2"), L.Dense(3)])

    _same_weights(_supervised(model, (6, 4), traced), _CLOSE[traced])


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

    _same_weights(_supervised(model, (4, 6, 6, 1), traced), _CLOSE[traced])


def test_lstm(traced: bool) -> None:
    def model():
        return keras.Sequential([L.LSTM(4, return_sequences=True), L.LSTM(3, dropout=0.2), L.Dense(3)])

    _same_weights(_supervised(model, (4, 5, 2), traced), _CLOSE[traced])


def _transformer() -> keras.Model:
    x = keras.Input((5, 6))
    attended = L.MultiHeadAttention(2, 3, dropout=0.1)(x, x, use_causal_mask=True)
    y = L.LayerNormalization()(L.Add()([x, attended]))
    z = L.Dense(6)(L.Dropout(0.1)(L.Dense(12, activation="gelu")(y)))
    y = L.LayerNormalization()(L.Add()([y, z]))
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(y)))


def test_transformer(traced: bool) -> None:
    _same_weights(_supervised(_transformer, (4, 5, 6), traced), _CLOSE[traced])


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

        train = _traced(train, traced)
        return [model], lambda number: train(tf.reshape(_labels(number, 6, 5), [2, 3]))

    _same_weights(make, _CLOSE[traced])


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

        train = _traced(train, traced)
        return [encoder, decoder, sample], lambda number: train(_batch(number, 4, 5))

    _same_weights(make, _CLOSE[traced])


# ------------------------------------------------------------------ several models, several tapes


def _gan(penalty: Callable[..., Any], traced: bool) -> Callable[[Any], Any]:
    def make(tape_type: Any) -> tuple[list[Any], Step]:
        generator = keras.Sequential([L.Dense(6, activation="relu"), L.Dense(3)])
        critic = keras.Sequential([L.Dense(6, activation="tanh"), L.Dense(4, activation="tanh"), L.Dense(1)])
        generator(tf.zeros([1, 2]))
        critic(tf.zeros([1, 3]))
        optimizers = [keras.optimizers.Adam(0.005, beta_1=0.5) for _ in range(2)]
        for optimizer, model in zip(optimizers, (critic, generator), strict=True):
            optimizer.build(model.trainable_variables)

        def train(real, noise, mix):
            with tape_type() as tape:
                fake = generator(noise, training=True)
                loss = tf.reduce_mean(critic(fake)) - tf.reduce_mean(critic(real))
                loss += 10.0 * penalty(tape_type, tape, critic, mix * real + (1.0 - mix) * fake)
            weights = critic.trainable_variables
            optimizers[0].apply(tape.gradient(loss, weights), weights)
            with tape_type() as tape:
                loss = -tf.reduce_mean(critic(generator(noise, training=True)))
            weights = generator.trainable_variables
            optimizers[1].apply(tape.gradient(loss, weights), weights)

        train = _traced(train, traced)
        return [critic, generator], lambda number: train(
            _batch(number, 4, 3), _batch(100 + number, 4, 2), tf.sigmoid(_batch(200 + number, 4, 1))
        )

    return make


def _norm_penalty(grads: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean((tf.sqrt(tf.reduce_sum(grads**2, 1) + 1e-8) - 1.0) ** 2)


def _nested_penalty(tape_type: Any, tape: Any, critic: Any, mixed: tf.Tensor) -> tf.Tensor:
    with tape_type() as inner:
        inner.watch(mixed)
        score = critic(mixed, training=True)
    return _norm_penalty(inner.gradient(score, mixed))


def _flat_penalty(tape_type: Any, tape: Any, critic: Any, mixed: tf.Tensor) -> tf.Tensor:
    """Ask the outer tape itself, in the middle of its block; the stock tape needs a second one for that."""
    if tape_type is tf.GradientTape:
        return _nested_penalty(tape_type, tape, critic, mixed)
    return _norm_penalty(tape.gradient(critic(mixed, training=True), mixed))


def test_wasserstein_gan_with_gradient_penalty_by_nested_tapes(traced: bool) -> None:
    _same_weights(_gan(_nested_penalty, traced), 1e-5)


def test_wasserstein_gan_with_gradient_penalty_by_one_tape(traced: bool) -> None:
    _same_weights(_gan(_flat_penalty, traced), 1e-5)


def _stock_penalty(tape_type: Any, tape: Any, critic: Any, mixed: tf.Tensor) -> tf.Tensor:
    return _nested_penalty(tf.GradientTape, tape, critic, mixed)


def test_stock_tape_inside_ours(traced: bool) -> None:
    _same_weights(_gan(_stock_penalty, traced), 1e-5)


def _our_penalty(tape_type: Any, tape: Any, critic: Any, mixed: tf.Tensor) -> tf.Tensor:
    inner = tf.GradientTape if tape_type is tf.GradientTape else rt.Tape
    return _nested_penalty(inner, tape, critic, mixed)


class StockOutside:
    """Stands for a user who changed only the inner tape."""

    def __new__(cls, *args: Any, **kwargs: Any) -> tf.GradientTape:
        return tf.GradientTape(*args, **kwargs)


def test_ours_inside_stock_tape(traced: bool) -> None:
    stock = _trained(_gan(_our_penalty, traced), tf.GradientTape)
    ours = _trained(_gan(_our_penalty, traced), StockOutside)
    for one, other in zip(ours, stock, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_actor_critic_with_target_networks(traced: bool) -> None:
    def make(tape_type: Any) -> tuple[list[Any], Step]:
        def actor():
            return keras.Sequential([L.Dense(6, activation="relu"), L.Dense(2, activation="tanh")])

        def critic():
            return keras.Sequential([L.Dense(6, activation="relu"), L.Dense(1)])

        models = [actor(), critic(), actor(), critic()]
        for model, width in zip(models, (3, 5, 3, 5), strict=True):
            model(tf.zeros([1, width]))
        pi, q, slow_pi, slow_q = models
        slow_pi.set_weights(pi.get_weights())
        slow_q.set_weights(q.get_weights())
        optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)]
        optimizers[0].build(pi.trainable_variables)
        optimizers[1].build(q.trainable_variables)

        def train(state, action, reward, after):
            with tape_type() as tape:
                goal = reward + 0.9 * slow_q(tf.concat([after, slow_pi(after)], 1))
                loss = tf.reduce_mean((tf.stop_gradient(goal) - q(tf.concat([state, action], 1))) ** 2)
            optimizers[1].apply(tape.gradient(loss, q.trainable_variables), q.trainable_variables)
            with tape_type() as tape:
                value = -tf.reduce_mean(q(tf.concat([state, pi(state)], 1)))
            optimizers[0].apply(tape.gradient(value, pi.trainable_variables), pi.trainable_variables)
            for slow, fast in ((slow_pi, pi), (slow_q, q)):
                for old, new in zip(slow.variables, fast.variables, strict=True):
                    old.assign(0.9 * old + 0.1 * new)

        train = _traced(train, traced)
        return models, lambda n: train(
            _batch(n, 4, 3), _batch(100 + n, 4, 2), _batch(200 + n, 4, 1), _batch(300 + n, 4, 3)
        )

    _same_weights(make, _CLOSE[traced])


def test_physics_informed_network(traced: bool) -> None:
    def make(tape_type: Any) -> tuple[list[Any], Step]:
        net = keras.Sequential([L.Dense(8, activation="tanh"), L.Dense(8, activation="tanh"), L.Dense(1)])
        net(tf.zeros([1, 2]))
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(net.trainable_variables)

        def residual(t, x):
            with tape_type() as second:
                second.watch(x)
                with tape_type(persistent=True) as first:
                    first.watch([t, x])
                    u = net(tf.concat([t, x], 1))
                u_x = first.gradient(u, x)
            u_t = first.gradient(u, t)
            return u_t + u * u_x - 0.1 * second.gradient(u_x, x), u

        def train(t, x):
            with tape_type() as tape:
                error, u = residual(t, x)
                loss = tf.reduce_mean(error**2) + tf.reduce_mean((u - tf.sin(x)) ** 2)
            optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

        train = _traced(train, traced)
        return [net], lambda number: train(_batch(number, 5, 1), _batch(100 + number, 5, 1))

    _same_weights(make, 1e-5)


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
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=4, verbose=0)
    return [weight.numpy() for weight in model.variables]


@pytest.mark.parametrize("eagerly", [True, False], ids=["eager", "graph"])
def test_own_train_step_under_fit(eagerly: bool) -> None:
    tolerance = _CLOSE[not eagerly]
    for ours, stock in zip(_fit(rt.Tape, eagerly), _fit(tf.GradientTape, eagerly), strict=True):
        np.testing.assert_allclose(ours, stock, rtol=tolerance, atol=tolerance)
