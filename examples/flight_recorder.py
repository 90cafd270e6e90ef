"""A compiled `fit` turns NaN at some step: the recorder leaves it as a tape, which names op, line and cause."""

from __future__ import annotations

import tempfile

import numpy as np
import tensorflow as tf

import retrotape as rt

SIZE, STEPS = 16, 120


class Contrast(tf.keras.layers.Layer):
    """Divides each image by its deviation, which is zero for an image of one color."""

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Return images with a deviation of 1."""
        mean, variance = tf.nn.moments(images, axes=[1], keepdims=True)
        return (images - mean) / tf.sqrt(variance)


def data(bad: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    images = draw.normal(size=(SIZE * STEPS, 10)).astype("f4")
    images[SIZE * bad + 3] = 0.25  # one image of one color
    return images, images[:, :1] * 2.0


def main(bad: int = 87) -> dict[str, object]:
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.Input([10]), Contrast(), tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dropout(0.1)]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1, name="out")])
    model.compile("adam", "mse")
    recorder = rt.FlightRecorder(tempfile.mkdtemp())
    model.fit(*data(bad), batch_size=SIZE, shuffle=False, verbose=0, callbacks=[recorder])
    crash = recorder.crashes[0]
    tape = rt.load(crash.tape)  # needs neither `Contrast` nor the model
    rows = np.flatnonzero(np.ptp(tape["x"].numpy(), axis=1) == 0)
    print(f"step {crash.step}: {crash.nonfinite}")
    print(f"the batch is on the tape: row {rows[0]} of x is {tape['x'].numpy()[rows[0], 0]} everywhere")
    return {"step": crash.step, "rows": rows.tolist(), "cause": crash.nonfinite.cause.name, "tape": crash.tape}


if __name__ == "__main__":
    main()
