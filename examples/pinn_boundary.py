"""A net that solves u'' = f with two losses, for the equation and for the boundary, which often conflict.

Their sum follows the larger gradient: the curvature becomes right, and the solution is off by a straight line.
UPGrad and ConFIG improve both; AlignedMTL does not help here, for it shortens the step to the weaker loss.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, POINTS, WAVE = 800, 64, 3.0 * np.pi  # u'' = -WAVE² sin(WAVE x) on 0 ≤ x ≤ 1, and u = 0 at both ends
METHODS = {
    "Sum": rt.aggregate.Sum(),
    "UPGrad": rt.aggregate.UPGrad(),
    "ConFIG": rt.aggregate.ConFIG(),
    "AlignedMTL": rt.aggregate.AlignedMTL(),
}
GRID = np.linspace(0.0, 1.0, 101, dtype="float32")


def solve(method: rt.aggregate.Aggregator, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Train a net; return its solution, and for each step the losses and the cosine of their gradients."""
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(32, activation="tanh") for _ in range(2)]
    model = keras.Sequential([keras.Input((1,)), *hidden, keras.layers.Dense(1)])
    weights, ends, adam = model.trainable_variables, tf.constant([[0.0], [1.0]]), keras.optimizers.Adam(0.01)
    adam.build(weights)

    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with rt.Tape() as tape:
            curvature = tape.gradient(tape.gradient(model(x), x), x)
            equation = tf.reduce_mean((curvature + WAVE**2 * tf.sin(WAVE * x)) ** 2)
            boundary = tf.reduce_mean(model(ends) ** 2)
        rows = tape.backward_each({"equation": equation, "boundary": boundary}, weights)
        method(rows).apply(adam)
        return tf.stack([equation, boundary]), rows.cosines()[0, 1]

    rng = np.random.default_rng(seed)
    points = (tf.constant(rng.uniform(size=(POINTS, 1)), tf.float32) for _ in range(STEPS))
    losses, cosines = zip(*(step(x) for x in points), strict=True)
    return model(GRID[:, None]).numpy()[:, 0], np.array(losses), np.array(cosines)


def error(solution: np.ndarray) -> float:
    return float(np.abs(solution - np.sin(WAVE * GRID)).max())


def main() -> dict[str, Any]:
    runs = {name: solve(method, seed=0) for name, method in METHODS.items()}
    for name, (solution, losses, cosines) in runs.items():
        equation, boundary = losses[-1]
        print(
            f"{name:11} largest error of u {error(solution):6.3f}; equation {equation:.2g}, boundary {boundary:.2g}; "
            f"conflict in {np.mean(cosines < 0.0):.0%} of the steps"
        )
    return {"runs": runs, "errors": {name: error(solution) for name, (solution, _, _) in runs.items()}}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    axes = figure.subplots(1, 4)
    for axis, (name, (solution, _, _)) in zip(axes, numbers["runs"].items(), strict=True):
        axis.plot(GRID, np.sin(WAVE * GRID), color="0.75", linewidth=6.0, label="exact")
        axis.plot(GRID, solution, color="tab:red", linewidth=1.8, label="the net")
        axis.set(title=f"{name}\nlargest error {numbers['errors'][name]:.2f}", xlabel="x")
        axis.set_ylim(-6.0, 6.0)
    axes[0].set_ylabel("u")
    axes[0].legend(loc="lower left", fontsize=8)


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
