"""Tune the learning rate of stock Adam by gradient descent.

A whole short training run is recorded. The held-out loss after it is differentiated with respect to the learning rate
that all of its steps used.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, ROUNDS = 6, 10


def data(seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(64, 4))
    y = np.sin(x[:, :1]) + 0.5 * x[:, 1:2] + 0.1 * rng.normal(size=(64, 1))
    return tf.constant(x, tf.float32), tf.constant(y, tf.float32)


def make_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])


def run(rate: float) -> tuple[float, float]:
    """Train from scratch; return the held-out loss and its derivative with respect to the rate."""
    model, adam = make_model(), keras.optimizers.Adam(rate)
    (x, y), (x_held, y_held) = data(0), data(1)
    weights = model.trainable_variables
    with rt.Tape() as tape:
        for _ in range(STEPS):
            loss = tf.reduce_mean((model(x) - y) ** 2)
            adam.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        held_out = tf.reduce_mean((model(x_held) - y_held) ** 2)
    slope = tape.gradient(held_out, adam.learning_rate, through_updates=True)
    return float(held_out), float(slope)


def main() -> dict[str, list[float]]:
    rate, rates, losses, slopes = 0.001, [], [], []
    for step in range(ROUNDS):
        loss, slope = run(rate)
        rates.append(rate)
        losses.append(loss)
        slopes.append(slope)
        if step % 3 == 0 or step == ROUNDS - 1:
            print(f"rate {rate:.4f}: held-out loss {loss:.4f}, d loss / d rate {slope:+.2f}")
        # A rate is positive and spans decades, so take the step on its logarithm, and limit its length.
        rate *= float(np.exp(np.clip(-3.0 * rate * slope, -1.0, 1.0)))
    return {"rates": rates, "losses": losses, "slopes": slopes}


def draw(figure: Any, numbers: dict[str, list[float]]) -> None:
    left, right = figure.subplots(1, 2)
    for rate, loss, slope in zip(numbers["rates"], numbers["losses"], numbers["slopes"], strict=True):
        ends = rate * np.array([-0.25, 0.25])
        left.plot(rate + ends, loss + slope * ends, color="tab:orange", linewidth=2.0)
    left.plot(numbers["rates"], numbers["losses"], "k.")
    left.set(title="every run, and its derivative w.r.t. rate", xlabel="learning rate of Adam", ylabel="held-out loss")
    right.plot(numbers["losses"], "o-")
    right.set(title="the rate is learned", xlabel="round", ylabel="held-out loss", ylim=(0.0, None))


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
