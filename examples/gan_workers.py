"""A GAN whose generator learns from seven discriminators, each with data of its own; those of two are broken.

The gradient of each discriminator's loss is a row. The mean of the rows follows the broken ones, too; methods that
leave out what differs from the majority learn the data of the other five.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, BATCH, WORKERS, BROKEN = 400, 128, 7, 2
METHODS = {
    "Mean": rt.aggregate.Mean(),
    "TrimmedMean": rt.aggregate.TrimmedMean(BROKEN),
    "Krum": rt.aggregate.Krum(BROKEN, selected=3),
}


def make_net() -> keras.Model:
    hidden = [keras.layers.Dense(64, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((2,)), *hidden])


def ring(worker: int) -> tf.Tensor:
    """Return points on a circle; a broken worker only has zeros."""
    angle = tf.random.uniform((BATCH, 1), 0.0, 2.0 * np.pi)
    points = tf.concat([tf.cos(angle), tf.sin(angle)], 1) + 0.1 * tf.random.normal((BATCH, 2))
    return tf.zeros_like(points) if worker < BROKEN else points


def cross_entropy(logits: tf.Tensor, real: float) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(real * tf.ones_like(logits), logits))


def train(method: rt.aggregate.Aggregator, seed: int) -> np.ndarray:
    """Return what the generator makes after training."""
    keras.utils.set_random_seed(seed)
    generator = keras.Sequential([make_net(), keras.layers.Dense(2)])
    discriminators = [keras.Sequential([make_net(), keras.layers.Dense(1)]) for _ in range(WORKERS)]
    generator_adam, discriminator_adam = (keras.optimizers.Adam(rate, beta_1=0.5) for rate in (0.001, 0.003))
    theirs = [w for discriminator in discriminators for w in discriminator.trainable_variables]
    generator_adam.build(generator.trainable_variables)
    discriminator_adam.build(theirs)

    @tf.function
    def step() -> None:
        with rt.Tape() as tape:
            fake, caught, fooled = generator(tf.random.normal((BATCH, 2))), [], []
            for worker, discriminator in enumerate(discriminators):
                on_real, on_fake = discriminator(ring(worker)), discriminator(fake)
                caught.append(cross_entropy(on_real, 1.0) + cross_entropy(on_fake, 0.0))
                fooled.append(cross_entropy(on_fake, 1.0))
        tape.backward(caught, theirs).apply(discriminator_adam)
        method(tape.backward_each(fooled, generator.trainable_variables)).apply(generator_adam)

    for _ in range(STEPS):
        step()
    return generator(tf.random.normal((1000, 2))).numpy()


def near(points: np.ndarray) -> float:
    """Return how many points lie near the circle."""
    return float(np.mean(np.abs(np.linalg.norm(points, axis=1) - 1.0) < 0.3))


def main() -> dict[str, Any]:
    made = {name: train(method, seed=0) for name, method in METHODS.items()}
    for name, points in made.items():
        print(f"{name:12} {near(points):4.0%} of the generated points lie near the circle")
    return {"made": made, "near": {name: near(points) for name, points in made.items()}}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    turn = np.linspace(0.0, 2.0 * np.pi, 200)
    for axis, (name, points) in zip(figure.subplots(1, 3), numbers["made"].items(), strict=True):
        axis.plot(np.cos(turn), np.sin(turn), color="0.85", linewidth=12.0, label="data of five workers")
        axis.plot(0.0, 0.0, "o", color="tab:red", markersize=14.0, label="data of two broken ones")
        axis.scatter(*points.T, s=5.0, color="tab:blue", zorder=3, label="generated")
        axis.set_title(f"{name}: {numbers['near'][name]:.0%} near the circle", fontsize=11)
        axis.set(aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
