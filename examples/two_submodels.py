"""Two Keras models with a tape each, and one Adam for both: the gradients are added and clipped together.

The weights are the same as with one stock tape over everything.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, BOUND = 20, 0.5
X = tf.constant(np.random.default_rng(0).normal(size=(32, 3)), tf.float32)


def train(stock: bool) -> tuple[list[np.ndarray], list[float]]:
    """Return the weights of both models after some steps, and the losses."""
    keras.utils.set_random_seed(0)
    curved = keras.Sequential([keras.Input((3,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
    linear = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    adam, history = keras.optimizers.Adam(0.02), []
    for _ in range(STEPS):
        with tf.GradientTape() as whole:
            with rt.Tape() as first:
                sine = tf.reduce_mean((curved(X) - tf.sin(X[:, :1])) ** 2)
            with rt.Tape() as second:
                copy = tf.reduce_mean((linear(X) - X[:, 1:]) ** 2)
            total = sine + copy
        if stock:
            variables = curved.trainable_variables + linear.trainable_variables
            grads, _ = tf.clip_by_global_norm(whole.gradient(total, variables), BOUND)
            adam.apply(grads, variables)
        else:
            (first.backward(sine) + second.backward(copy)).clip(global_norm=BOUND).apply(adam)
        history.append(float(total))
    return curved.get_weights() + linear.get_weights(), history


def main() -> dict[str, float]:
    (ours, history), (stock, _) = train(stock=False), train(stock=True)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(ours, stock, strict=True))
    print(f"loss of both {history[0]:.3f} → {history[-1]:.3f}, weights differ from stock by {apart:.1e}")
    return {"first": history[0], "last": history[-1], "apart": apart}


if __name__ == "__main__":
    main()
