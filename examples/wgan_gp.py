"""WGAN-GP: the critic's loss contains its gradient with respect to points between real and fake ones.

That gradient is computed inside the block of a tape, and the same tape gives the gradient of the whole loss.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, CRITIC_STEPS, BATCH, PENALTY = 600, 3, 128, 1.0
ANGLES = np.arange(8) * np.pi / 4.0
CENTRES = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype("float32")


def make_net(inputs: int, outputs: int) -> keras.Model:
    hidden = [keras.layers.Dense(64, activation="leaky_relu") for _ in range(2)]
    return keras.Sequential([keras.Input((inputs,)), *hidden, keras.layers.Dense(outputs)])


def ring(points: int) -> tf.Tensor:
    """Return points from eight small clusters on a circle."""
    which = tf.random.uniform((points,), 0, len(CENTRES), tf.int32)
    return tf.gather(CENTRES, which) + tf.random.normal((points, 2), stddev=0.05)


def critic_grads(critic: keras.Model, real: tf.Tensor, fake: tf.Tensor, mix: tf.Tensor) -> tuple:
    """Return the critic's distance between real and fake, its mean slope between them, and the loss's gradient."""
    with rt.Tape() as tape:
        between = mix * real + (1.0 - mix) * fake
        slope = tape.gradient(critic(between), between)  # part of the loss, and differentiated with it
        steepness = tf.sqrt(tf.reduce_sum(slope**2, axis=1) + 1e-12)
        distance = tf.reduce_mean(critic(real)) - tf.reduce_mean(critic(fake))
        loss = PENALTY * tf.reduce_mean((steepness - 1.0) ** 2) - distance
    return distance, tf.reduce_mean(steepness), tape.backward(loss, critic.trainable_variables)


def main() -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    generator, critic = make_net(2, 2), make_net(2, 1)
    generator_adam, critic_adam = (keras.optimizers.Adam(0.002, beta_1=0.5, beta_2=0.9) for _ in range(2))

    @tf.function
    def step() -> tuple:
        for _ in range(CRITIC_STEPS):
            fake = generator(tf.random.normal((BATCH, 2)))
            distance, steepness, grads = critic_grads(critic, ring(BATCH), fake, tf.random.uniform((BATCH, 1)))
            grads.apply(critic_adam)
        with rt.Tape() as tape:
            loss = -tf.reduce_mean(critic(generator(tf.random.normal((BATCH, 2)))))
        tape.backward(loss, generator.trainable_variables).apply(generator_adam)
        return distance, steepness

    history, made = [], {}
    for number in range(STEPS + 1):
        if number % (STEPS // 3) == 0:
            made[number] = generator(tf.random.normal((1000, 2))).numpy()
        history.append([float(value) for value in step()])
        if number in made:
            distance, steepness = np.mean(history[-50:], axis=0)
            near = np.linalg.norm(made[number][:, None] - CENTRES, axis=2).min(axis=1) < 0.2
            print(f"{number:4} steps: {near.mean():4.0%} of generated points lie in a cluster,", end=" ")
            print(f"critic's distance {distance:.2f}, mean slope {steepness:.2f} (target: 1)")
    return {"history": np.array(history), "near": float(near.mean()), "made": made, "data": ring(1000).numpy()}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    figure.set_size_inches(9.0, 2.7)
    axes = figure.subplots(1, len(numbers["made"]), sharex=True, sharey=True)
    for axis, (number, made) in zip(axes, numbers["made"].items(), strict=True):
        axis.scatter(*numbers["data"].T, s=3, color="0.6", label="data")
        axis.scatter(*made.T, s=2, color="tab:red", alpha=0.5, label="generated")
        axis.set(title=f"{number} steps", aspect="equal", xlim=(-1.7, 1.7), ylim=(-1.7, 1.7))
    axes[0].legend(loc="upper left", markerscale=3.0, fontsize=8, handletextpad=0.0)


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
