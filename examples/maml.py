"""Second-order MAML: learn weights from which five plain SGD steps fit any sine wave.

Model and optimizer are stock Keras and change the weights in place; nothing is rewritten as pure functions.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

INNER_STEPS, META_STEPS, TASKS = 5, 160, 4


def make_model(seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(32, activation="tanh") for _ in range(2)]
    return keras.Sequential([keras.Input((1,)), *hidden, keras.layers.Dense(1)])


def sine_wave(rng: np.random.Generator, points: int = 10) -> tuple[tf.Tensor, tf.Tensor]:
    """Return x and y of shape [2, points, 1]: points to adapt to, and points to be judged by."""
    x = rng.uniform(-3.0, 3.0, (2, points, 1))
    y = rng.uniform(0.5, 2.0) * np.sin(x + rng.uniform(0.0, np.pi))
    return tf.constant(x, tf.float32), tf.constant(y, tf.float32)


def meta_gradient(model: keras.Model, inner: keras.Optimizer, x: tf.Tensor, y: tf.Tensor) -> tuple:
    """Return the loss after adapting to a task, and its gradient by the weights before."""
    weights = model.trainable_variables
    start = [tf.identity(weight) for weight in weights]
    with rt.Tape() as tape:
        for _ in range(INNER_STEPS):
            loss = tf.reduce_mean((model(x[0]) - y[0]) ** 2)
            inner.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        query_loss = tf.reduce_mean((model(x[1]) - y[1]) ** 2)
    for weight, value in zip(weights, start, strict=True):
        weight.assign(value)
    return query_loss, tape.gradient(query_loss, weights, through_updates=True)


def main() -> dict[str, float]:
    model, inner, outer = make_model(), keras.optimizers.SGD(0.02), keras.optimizers.Adam(0.005)
    inner.build(model.trainable_variables)  # a tf.function makes no variables when it is called again
    ask, rng, history = tf.function(meta_gradient), np.random.default_rng(0), []
    for step in range(META_STEPS):
        losses, grads = zip(*(ask(model, inner, *sine_wave(rng)) for _ in range(TASKS)), strict=True)
        mean = [tf.add_n(parts) / TASKS for parts in zip(*grads, strict=True)]
        outer.apply_gradients(zip(mean, model.trainable_variables, strict=True))
        history.append(float(tf.add_n(losses)) / TASKS)
        if step % 40 == 39:
            print(f"{step + 1:4} meta-steps: loss after five steps on a new wave {np.mean(history[-40:]):.3f}")
    return {"first": float(np.mean(history[:10])), "last": float(np.mean(history[-10:]))}


if __name__ == "__main__":
    main()
