"""Second-order MAML: learn weights from which five plain SGD steps fit any sine wave.

Model and optimizer are stock Keras and change the weights in place; nothing has to be rewritten as pure functions.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

INNER_STEPS, META_STEPS, TASKS = 5, 120, 4


def make_model(seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(32, activation="tanh") for _ in range(2)]
    return keras.Sequential([keras.Input((1,)), *hidden, keras.layers.Dense(1)])


def sine_wave(rng: np.random.Generator, points: int = 10) -> tuple[tf.Tensor, tf.Tensor]:
    """Return x and y of shape [2, points, 1]: points to adapt to, and points to evaluate on."""
    x = rng.uniform(-3.0, 3.0, (2, points, 1))
    y = rng.uniform(0.5, 2.0) * np.sin(x + rng.uniform(0.0, np.pi))
    return tf.constant(x, tf.float32), tf.constant(y, tf.float32)


def adapt(tape: rt.Tape, model: keras.Model, inner: keras.Optimizer, x: tf.Tensor, y: tf.Tensor) -> None:
    """Take a few plain steps towards the points of one task."""
    weights = model.trainable_variables
    for _ in range(INNER_STEPS):
        loss = tf.reduce_mean((model(x) - y) ** 2)
        inner.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


def meta_gradient(model: keras.Model, inner: keras.Optimizer, x: tf.Tensor, y: tf.Tensor) -> tuple:
    """Return the loss after adapting to a task, and its gradient with respect to the weights before."""
    weights = model.trainable_variables
    start = [tf.identity(weight) for weight in weights]
    with rt.Tape() as tape:
        adapt(tape, model, inner, x[0], y[0])
        query_loss = tf.reduce_mean((model(x[1]) - y[1]) ** 2)
    for weight, value in zip(weights, start, strict=True):
        weight.assign(value)
    return query_loss, tape.gradient(query_loss, weights, through_updates=True)


def new_wave(model: keras.Model, inner: keras.Optimizer) -> dict[str, np.ndarray]:
    """Return a wave that was not in training, and the model's predictions before and after adapting."""
    grid = np.linspace(-3.0, 3.0, 121).reshape(-1, 1)
    truth, before = 1.5 * np.sin(grid + 0.3), model(grid).numpy()
    with rt.Tape() as tape:
        adapt(tape, model, inner, grid[6::12], truth[6::12])
    after = model(grid).numpy()
    losses = [float(np.mean((guess - truth) ** 2)) for guess in (before, after)]
    return {"grid": grid, "truth": truth, "before": before, "after": after, "losses": losses}


def main() -> dict[str, Any]:
    model, inner, outer = make_model(), keras.optimizers.SGD(0.02), keras.optimizers.Adam(0.005)
    inner.build(model.trainable_variables)  # a tf.function may not create variables in later calls
    compiled, rng, history = tf.function(meta_gradient), np.random.default_rng(0), []
    fresh = new_wave(make_model(), keras.optimizers.SGD(0.02))
    for step in range(META_STEPS):
        losses, grads = zip(*(compiled(model, inner, *sine_wave(rng)) for _ in range(TASKS)), strict=True)
        mean = [tf.add_n(parts) / TASKS for parts in zip(*grads, strict=True)]
        outer.apply_gradients(zip(mean, model.trainable_variables, strict=True))
        history.append(float(tf.add_n(losses)) / TASKS)
        if step % 40 == 39:
            print(f"{step + 1:4} meta-steps: loss after five steps on a new wave {np.mean(history[-40:]):.3f}")
    waves = {"random weights": fresh, "weights learned by MAML": new_wave(model, inner)}
    for name, wave in waves.items():
        print("a new wave, from {}: loss {:.3f} → {:.3f} in five steps".format(name, *wave["losses"]))
    return {"first": float(np.mean(history[:10])), "last": float(np.mean(history[-10:])), "waves": waves}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (title, wave) in zip(axes, numbers["waves"].items(), strict=True):
        axis.plot(wave["grid"], wave["truth"], color="0.6", linewidth=5.0, label="a new wave")
        axis.plot(wave["grid"][6::12], wave["truth"][6::12], "k.", label="ten points of it, to adapt to")
        axis.plot(wave["grid"], wave["before"], "--", label="before")
        axis.plot(wave["grid"], wave["after"], label=f"after {INNER_STEPS} steps of SGD")
        axis.set(title=title, xlabel="x")
    axes[0].legend(loc="upper left", fontsize=8)


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
