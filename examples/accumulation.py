"""A batch that does not fit into memory, split into micro-batches of any size: the step equals that of the whole batch.

Each micro-batch is weighted by its size, and its tape is freed before the next one begins.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, SIZES = 20, [40, 16, 7, 1]
X = tf.constant(np.random.default_rng(0).normal(size=(sum(SIZES), 4)), tf.float32)
Y = tf.sin(X[:, :1]) + X[:, 1:2] ** 2


def train(stock: bool) -> tuple[list[np.ndarray], list[float]]:
    """Return the weights after some steps, and the losses."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)])
    adam, history = keras.optimizers.Adam(0.02), []

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean((model(x) - y) ** 2)

    for _ in range(STEPS):
        if stock:
            with tf.GradientTape() as tape:
                value = loss(X, Y)
            adam.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        else:
            value, grads, _ = rt.accumulate(loss, zip(tf.split(X, SIZES), tf.split(Y, SIZES), strict=True))
            grads.apply(adam)
        history.append(float(value))
    return model.get_weights(), history


def main() -> dict[str, float]:
    (ours, history), (stock, _) = train(stock=False), train(stock=True)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(ours, stock, strict=True))
    print(f"micro-batches of {SIZES}: loss {history[0]:.3f} → {history[-1]:.3f} in {STEPS} steps of Adam")
    print(f"weights differ from those of one stock tape over the whole batch by {apart:.1e}")
    return {"first": history[0], "last": history[-1], "apart": apart}


if __name__ == "__main__":
    main()
