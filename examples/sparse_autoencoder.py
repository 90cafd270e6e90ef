"""An autoencoder with two losses, for its error and for a code with few numbers, and the weight between them.

In the sum the weight decides everything, and a good one has to be found. IMTL-G takes a gradient that agrees equally
with both losses, whatever their sizes: nearly the same code for every weight.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, IMAGES, SIZE, PATTERNS, CODE = 400, 512, 12, 16, 32
WEIGHTS = [0.01, 0.1, 1.0, 10.0, 100.0]  # of the loss for few numbers
METHODS = {"Sum": rt.aggregate.Sum(), "IMTLG": rt.aggregate.IMTLG()}


def make_images(seed: int) -> tf.Tensor:
    """Return images that are made of two of sixteen patterns each."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(PATTERNS, SIZE))
    patterns /= np.linalg.norm(patterns, axis=1, keepdims=True)
    strength = rng.uniform(0.5, 1.5, (IMAGES, PATTERNS)) * (rng.uniform(size=(IMAGES, PATTERNS)).argsort(1) < 2)
    return tf.constant(strength @ patterns, tf.float32)


def train(method: rt.aggregate.Aggregator, weight: float, seed: int) -> tuple[float, float]:
    """Return the error as a part of the images' energy, and how many numbers of a code are not zero."""
    keras.utils.set_random_seed(seed)
    dense, images = keras.layers.Dense, make_images(seed)
    encoder = keras.Sequential([keras.Input((SIZE,)), dense(64, "relu"), dense(CODE, "relu")])
    decoder = keras.Variable(keras.random.normal((CODE, SIZE)))
    weights, adam = [*encoder.trainable_variables, decoder], keras.optimizers.Adam(0.01)
    adam.build(weights)

    @tf.function
    def step() -> None:
        with rt.Tape() as tape:
            code = encoder(images)
            decoded = code @ tf.math.l2_normalize(decoder, 1)  # else small codes would be as good
            error = tf.reduce_mean(tf.reduce_sum((decoded - images) ** 2, 1))
            size = weight * tf.reduce_mean(tf.reduce_sum(code, 1))
        method(tape.backward_each({"error": error, "size": size}, weights)).apply(adam)

    for _ in range(STEPS):
        step()
    code = encoder(images)
    left = tf.reduce_sum((code @ tf.math.l2_normalize(decoder, 1) - images) ** 2) / tf.reduce_sum(images**2)
    return float(left), float(tf.reduce_mean(tf.reduce_sum(tf.cast(code > 0.01, tf.float32), 1)))


def main() -> dict[str, Any]:
    found = {name: np.array([train(one, weight, seed=0) for weight in WEIGHTS]) for name, one in METHODS.items()}
    print("weight  " + "".join(f"{weight:>14g}" for weight in WEIGHTS))
    for name, pairs in found.items():
        print(f"{name:8}" + "".join(f"{error:8.1%}, {count:4.1f}" for error, count in pairs))
    print(f"error, and how many of {CODE} numbers a code uses; the images have two patterns each")
    return {"found": found}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    axes = figure.subplots(1, 2)
    titles = "error (part of the images' energy)", f"numbers of {CODE} in use"
    for column, (axis, title) in enumerate(zip(axes, titles, strict=True)):
        for (name, pairs), marker in zip(numbers["found"].items(), "os", strict=True):
            axis.plot(WEIGHTS, pairs[:, column], f"{marker}-", linewidth=2.0, markersize=7.0, label=name)
        axis.set(title=title, xscale="log", xlabel="weight of the loss for few numbers")
    axes[1].axhline(2.0, color="0.6", linestyle=":", label="patterns in an image")
    axes[0].legend(loc="upper left", fontsize=9)
    axes[1].legend(fontsize=9)


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
