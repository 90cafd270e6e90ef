"""A trunk with eight heads whose targets have different units, so that some losses are ten thousand times as large.

The sum of the losses serves the largest ones; the gradient that UPGrad makes conflicts with none, however small it is.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS, POINTS, WIDTH, HEADS = 400, 512, 8, 8
UNITS = np.geomspace(1.0, 100.0, HEADS).tolist()  # as from metres to centimetres, and a loss is the square of an error
METHODS = {"Sum": rt.aggregate.Sum(), "UPGrad": rt.aggregate.UPGrad()}


def make_data(seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return points and eight targets, each a soft step in a direction of its own."""
    rng = np.random.default_rng(seed)
    x, directions = rng.normal(size=(POINTS, WIDTH)), rng.normal(size=(WIDTH, HEADS))
    y = np.array(UNITS) * np.tanh(2.0 * x @ (directions / np.linalg.norm(directions, axis=0)))
    return tf.constant(x, tf.float32), tf.constant(y, tf.float32)


def train(method: rt.aggregate.Aggregator, seed: int) -> np.ndarray:
    """Return, for each step and head, which part of its target's variance is left as error."""
    keras.utils.set_random_seed(seed)
    x, y = make_data(seed)
    dense = keras.layers.Dense
    trunk = keras.Sequential([keras.Input((WIDTH,)), dense(32, "tanh"), dense(WIDTH, "tanh")])
    heads = [keras.Sequential([keras.Input((WIDTH,)), dense(1)]) for _ in range(HEADS)]
    weights = [*trunk.trainable_variables, *(w for head in heads for w in head.trainable_variables)]
    adam = keras.optimizers.Adam(0.03)
    adam.build(weights)

    @tf.function
    def step() -> tf.Tensor:
        with rt.Tape() as tape:
            features = trunk(x)
            pairs = zip(UNITS, heads, tf.unstack(y, axis=1), strict=True)
            losses = [tf.reduce_mean((unit * head(features)[:, 0] - each) ** 2) for unit, head, each in pairs]
        method(tape.backward_each(losses, weights)).apply(adam)
        return tf.stack(losses)

    return np.array([step() for _ in range(STEPS)]) / tf.math.reduce_variance(y, 0).numpy()


def main() -> dict[str, Any]:
    left = {name: train(method, seed=0) for name, method in METHODS.items()}
    print(f"error of eight heads after {STEPS} steps of Adam, as a part of the variance; 1 is no better than the mean")
    print("unit    " + "".join(f"{unit:8.3g}" for unit in UNITS))
    for name, parts in left.items():
        print(f"{name:8}" + "".join(f"{part:8.3f}" for part in parts[-1]))
    return {"left": left}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    axes = figure.subplots(1, 2, sharey=True)
    colors = np.linspace(0.0, 0.85, HEADS)
    for axis, (name, parts) in zip(axes, numbers["left"].items(), strict=True):
        for head, color in enumerate(colors):
            label = {0: "smallest unit", HEADS - 1: "largest unit"}.get(head)
            axis.plot(parts[:, head], color=_color(color), linewidth=1.8, label=label)
        axis.axhline(1.0, color="0.7", linestyle=":")
        axis.set(
            title=f"{name}: the worst head has {parts[-1].max():.2f} left",
            xlabel="step",
            yscale="log",
            ylim=(3e-4, 4.0),
        )
    axes[0].set_ylabel("error of each head\n(part of the variance)")
    axes[0].legend(loc="lower left", fontsize=8)


def _color(place: float) -> Any:
    from matplotlib import colormaps

    return colormaps["plasma"](place)


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
