"""Loops with several models or several tapes, with the stock tape and with ours: the same weights come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt
from conform.training import CLOSE, L, Step, as_function, batch, same_weights, trained


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

        train = as_function(train, traced)
        return [critic, generator], lambda number: train(
            batch(number, 4, 3), batch(100 + number, 4, 2), tf.sigmoid(batch(200 + number, 4, 1))
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
    same_weights(_gan(_nested_penalty, traced), 1e-5)


def test_wasserstein_gan_with_gradient_penalty_by_one_tape(traced: bool) -> None:
    same_weights(_gan(_flat_penalty, traced), 1e-5)


def _stock_penalty(tape_type: Any, tape: Any, critic: Any, mixed: tf.Tensor) -> tf.Tensor:
    return _nested_penalty(tf.GradientTape, tape, critic, mixed)


def test_stock_tape_inside_ours(traced: bool) -> None:
    same_weights(_gan(_stock_penalty, traced), 1e-5)


def _our_penalty(tape_type: Any, tape: Any, critic: Any, mixed: tf.Tensor) -> tf.Tensor:
    inner = tf.GradientTape if tape_type is tf.GradientTape else rt.Tape
    return _nested_penalty(inner, tape, critic, mixed)


class StockOutside:
    """Stands for a user who changed only the inner tape."""

    def __new__(cls, *args: Any, **kwargs: Any) -> tf.GradientTape:
        return tf.GradientTape(*args, **kwargs)


def test_ours_inside_stock_tape(traced: bool) -> None:
    stock = trained(_gan(_our_penalty, traced), tf.GradientTape)
    ours = trained(_gan(_our_penalty, traced), StockOutside)
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

        train = as_function(train, traced)
        return models, lambda n: train(batch(n, 4, 3), batch(100 + n, 4, 2), batch(200 + n, 4, 1), batch(300 + n, 4, 3))

    same_weights(make, CLOSE[traced])


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

        train = as_function(train, traced)
        return [net], lambda number: train(batch(number, 5, 1), batch(100 + number, 5, 1))

    same_weights(make, 1e-5)
