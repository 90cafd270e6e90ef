"""Grad-CAM on an unchanged Keras model: the last convolution is found on the tape afterwards.

The model was trained on which shapes are in an image, not on where they are; one tape shows where it saw each of them.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

SIZE, SHAPE, KINDS = 24, 7, ["square", "cross"]
EMPTY = np.zeros((SHAPE, SHAPE))
PATTERNS = np.array([np.pad(EMPTY[1:-1, 1:-1], 1, constant_values=1), np.eye(SHAPE) + np.eye(SHAPE)[::-1] > 0, EMPTY])


def images(rng: np.random.Generator, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy images with a shape (or none: -1) in the left half and one in the right, and their corners."""
    half = SIZE // 2
    pixels = rng.uniform(0.0, 0.4, (len(kinds), SIZE, SIZE, 1)).astype("float32")
    corners = rng.integers([[0, 0], [0, half]], [[SIZE - SHAPE, half - SHAPE], [SIZE - SHAPE] * 2], (len(kinds), 2, 2))
    for image, pair, places in zip(pixels, kinds, corners, strict=True):
        for kind, (y, x) in zip(pair, places, strict=True):
            image[y : y + SHAPE, x : x + SHAPE, 0] += 0.6 * PATTERNS[kind]
    return pixels, corners


def train(rng: np.random.Generator) -> keras.Model:
    """Return a small CNN that predicts for each kind of shape whether it is in the image."""
    keras.utils.set_random_seed(0)
    first = keras.layers.Conv2D(8, 5, activation="relu", padding="same")
    last = keras.layers.Conv2D(16, 5, activation="relu", padding="same", name="last_conv")
    head = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(len(KINDS))]
    model = keras.Sequential([first, keras.layers.MaxPooling2D(), last, *head])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
    kinds = rng.integers(-1, len(KINDS), (1000, 2))
    there = np.stack([(kinds == kind).any(axis=1) for kind in range(len(KINDS))], axis=1)
    model.fit(images(rng, kinds)[0], there, epochs=6, batch_size=50, verbose=0)
    return model


def grad_cam(tape: rt.Tape, scores: tf.Tensor, kind: int) -> np.ndarray:
    """Return for each image how much each position contributes to a class."""
    features = tape.tensors(op="Relu", layer="last_conv")[0]
    of_kind = tf.one_hot([kind] * len(scores), len(KINDS))
    weights = tf.reduce_mean(tape.gradient(scores, features, output_gradients=of_kind), axis=(1, 2), keepdims=True)
    return tf.nn.relu(tf.reduce_sum(weights * features, axis=-1)).numpy()


def main() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    model = train(rng)
    kinds = rng.permuted(np.tile([0, 1], (200, 1)), axis=1)  # one square and one cross in each
    pixels, corners = images(rng, kinds)
    with rt.Tape() as tape:
        scores = model(pixels)
    print("found on the tape:", *tape.tensors(op="Relu", layer="last_conv").found)
    heat, hits = [], {}
    for kind, name in enumerate(KINDS):
        heat.append(grad_cam(tape, scores, kind))
        peak = np.stack(np.unravel_index(heat[-1].reshape(200, -1).argmax(axis=1), heat[-1].shape[1:]), axis=1)
        inside = 2 * peak + 1 - corners[kinds == kind]  # two pixels are one position on the map
        hits[name] = float(((inside >= 0) & (inside <= SHAPE)).all(axis=1).mean())
        print(f"the strongest position for {name!r} lies on the {name} in {hits[name]:.0%} of 200 new images")
    return {"hits": hits, "heat": heat, "pixels": pixels, "model": model}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    figure.set_size_inches(9.0, 4.8)
    figure.suptitle("Grad-CAM: where a stock CNN saw the square, and where the cross")
    rows = figure.subplots(3, 6)
    for row, name, heat in zip(rows, ["image", *KINDS], [None, *numbers["heat"]], strict=True):
        row[0].set_ylabel(name, fontsize=12)
        for number, axis in enumerate(row):
            axis.set(xticks=[], yticks=[])
            axis.imshow(numbers["pixels"][number, :, :, 0], cmap="gray", extent=(0, 1, 0, 1))
            if heat is not None:
                axis.imshow(heat[number], cmap="inferno", alpha=0.7, extent=(0, 1, 0, 1), interpolation="bilinear")


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
