"""Integrated gradients on a stock Keras model: which bars of a digital clock make this an 8, and not a 0 or a 6?

The path from a black image to this one is recorded once. The attributions add up to the change of the model's output:
those of the pixels, and those of every layer inside, without `watch`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, DIGIT, OTHERS = 200, 8, [0, 6]
BARS = ["top", "upper left", "upper right", "middle", "lower left", "lower right", "bottom"]
PLAN = ["-000-", "1---2", "1---2", "1---2", "-333-", "4---5", "4---5", "4---5", "-666-"]
MASKS = np.array([[[mark == str(bar) for mark in row] for row in PLAN] for bar in range(len(BARS))])
LIT = ["1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011"]


def display(rng: np.random.Generator, digits: np.ndarray) -> tf.Tensor:
    """Return noisy images of digits, whose bars are not all equally bright."""
    lit = np.array([list(bars) for bars in LIT], float)[digits] * rng.uniform(0.6, 1.0, (len(digits), len(BARS)))
    pixels = np.einsum("nb,byx->nyx", lit, MASKS)
    return tf.constant(pixels + rng.normal(0.0, 0.1, pixels.shape), tf.float32)


def train(rng: np.random.Generator) -> keras.Model:
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(32, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.layers.Flatten(), *hidden, keras.layers.Dense(10)])
    model.compile(keras.optimizers.Adam(0.005), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    digits = rng.integers(0, 10, 4000)
    model.fit(display(rng, digits), digits, epochs=6, batch_size=100, verbose=0)
    return model


def attributions(tape: rt.Tape, scores: tf.Tensor, contrast: tf.Tensor, along: tf.Tensor) -> tf.Tensor:
    """Return the contribution of each element of a tensor to the score, along the path of its rows."""
    grads = tape.gradient(scores, along, output_gradients=tf.ones_like(scores) * contrast)
    return tf.reduce_sum((along[1:] - along[:-1]) * (grads[1:] + grads[:-1]) / 2.0, axis=0)


def main() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    model, image = train(rng), display(rng, np.array([DIGIT]))
    path = tf.linspace(0.0, 1.0, STEPS + 1)[:, None, None] * image
    with rt.Tape() as tape:
        scores = model(path)
    places = [path, *tape.tensors(op="Relu")]
    numbers: dict[str, Any] = {"image": image[0].numpy(), "model": model, "change": {}, "found": {}}
    for other in OTHERS:
        contrast = tf.one_hot(DIGIT, 10) - tf.one_hot(other, 10)
        change = float(tf.reduce_sum((scores[-1] - scores[0]) * contrast))
        found = [attributions(tape, scores, contrast, along).numpy() for along in places]
        numbers["change"][other], numbers["found"][other] = change, found
        print(f"why {DIGIT} and not {other}? From black to this image the score changes by {change:+.3f}.")
        print("  sums: {:+.3f} over the pixels, {:+.3f} and {:+.3f} over the layers".format(*map(np.sum, found)))
        bars = sorted(zip(np.einsum("byx,yx->b", MASKS, found[0]), BARS, strict=True), reverse=True)
        print("  per bar:", ", ".join(f"{bar} {value:+.1f}" for value, bar in bars))
    return numbers


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    image, *maps = figure.subplots(1, 1 + len(OTHERS))
    image.imshow(numbers["image"], cmap="gray", vmin=0.0, vmax=1.0)
    image.set_title(f"the image: an {DIGIT}")
    bound = max(np.abs(pixels).max() for pixels, *_ in numbers["found"].values())
    for axis, (other, (pixels, *_)) in zip(maps, numbers["found"].items(), strict=True):
        shown = axis.imshow(pixels, cmap="RdBu_r", vmin=-bound, vmax=bound)
        axis.set_title(f"why {DIGIT} and not {other}?")
    figure.colorbar(shown, ax=maps, label="attribution")
    for axis in (image, *maps):
        axis.set_axis_off()


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
