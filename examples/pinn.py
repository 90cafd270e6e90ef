"""A net that solves the heat equation: its loss contains first and second derivatives with respect to its inputs.

One tape, without `watch` or nesting, also gives the gradient of that loss with respect to the weights.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, POINTS, RATE = 300, 128, 0.1  # u_t = RATE · u_xx on 0 ≤ x ≤ 1, 0 ≤ t ≤ 1


def make_model() -> keras.Model:
    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(24, activation="tanh") for _ in range(2)]
    return keras.Sequential([keras.Input((2,)), *hidden, keras.layers.Dense(1)])


def heat(model: keras.Model, t: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Return u(t, x): sin πx at the start and zero at both ends, whatever the net predicts."""
    return tf.sin(np.pi * x) + t * x * (1.0 - x) * model(tf.concat([t, x], axis=1))


def solve(model: keras.Model) -> list[float]:
    """Train the net to satisfy the equation at random points; return the losses."""
    weights, adam = model.trainable_variables, keras.optimizers.Adam(0.01)
    adam.build(weights)

    @tf.function
    def step(t: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        with rt.Tape() as tape:
            u = heat(model, t, x)
            u_t, u_x = tape.gradient(u, [t, x])
            u_xx = tape.gradient(u_x, x)
            loss = tf.reduce_mean((u_t - RATE * u_xx) ** 2)
        adam.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    rng = np.random.default_rng(0)
    points = (tf.constant(rng.uniform(size=(2, POINTS, 1)), tf.float32) for _ in range(STEPS))
    return [float(step(*pair)) for pair in points]


def main() -> dict[str, Any]:
    model = make_model()
    losses = solve(model)
    t, x = (axis.reshape(-1, 1).astype("float32") for axis in np.meshgrid(*2 * [np.linspace(0.0, 1.0, 21)]))
    exact = np.exp(-RATE * np.pi**2 * t) * np.sin(np.pi * x)
    solved = heat(model, tf.constant(t), tf.constant(x)).numpy()
    error = float(np.abs(solved - exact).max())
    print(f"mean squared residual of the equation: {losses[0]:.4f} → {losses[-1]:.6f} in {STEPS} steps of Adam")
    print(f"largest error of u: {error:.4f}, where u itself goes up to 1")
    tables = {name: values.reshape(21, 21) for name, values in [("solved", solved), ("exact", exact)]}
    return {"first": losses[0], "last": losses[-1], "error": error, **tables}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    left, right = figure.subplots(1, 2)
    shown = left.imshow(
        numbers["solved"], origin="lower", extent=(0, 1, 0, 1), cmap="inferno", aspect="auto", interpolation="bilinear"
    )
    figure.colorbar(shown, ax=left, label="u")
    left.set(title="the net's solution", xlabel="time t", ylabel="position x")
    axis = np.linspace(0.0, 1.0, 21)
    for column in (0, 5, 10, 20):
        right.plot(axis, numbers["exact"][:, column], color="0.75", linewidth=5.0)
        right.plot(axis, numbers["solved"][:, column], label=f"t = {axis[column]:.2f}")
    right.set(title="lines: the net, grey: exact", xlabel="position x", ylabel="u")
    right.legend(fontsize=8)


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
