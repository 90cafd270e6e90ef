"""Which labels are wrong? Influence functions: how much each training example raises the loss on clean data.

One tape of one example is replayed with every other one, for its gradient; the Hessian is that of a tape of all.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

EXAMPLES, WRONG = 300, 30
DAMPING = 0.01  # added to the Hessian, which need not be positive where training has stopped


def moons(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points on two half circles that reach into each other, with some noise, and the half circle of each."""
    label = np.arange(count) % 2
    angle = rng.uniform(0.0, np.pi, count)
    x = np.stack([np.cos(angle) + label, np.sin(angle) * (1 - 2 * label) + 0.3 * label], axis=1)
    return x + 0.25 * rng.normal(size=x.shape), label.astype(float)


def train(x: np.ndarray, label: np.ndarray) -> keras.Model:
    layers = [keras.layers.Dense(8, "tanh", dtype="float64"), keras.layers.Dense(1, dtype="float64")]
    model = keras.Sequential([keras.Input((2,), dtype="float64"), *layers])
    model.compile(keras.optimizers.Adam(0.05), keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(x, label[:, None], epochs=200, batch_size=EXAMPLES, verbose=0)
    return model


def record(model: keras.Model, x: np.ndarray, label: np.ndarray) -> tuple[rt.Tape, dict[str, tf.Tensor]]:
    """Return a tape of the loss of some examples, and what to call its tensors."""
    inputs = {"x": tf.constant(x), "label": tf.constant(label)}
    with rt.Tape() as tape:
        each = tf.nn.sigmoid_cross_entropy_with_logits(inputs["label"], model(inputs["x"])[:, 0])
        loss = tf.reduce_mean(each)
    return tape, {**inputs, "loss": loss}


def influence(model: keras.Model, x: np.ndarray, label: np.ndarray, clean: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return how much the loss on clean data rises with the weight of each training example."""
    weights = model.trainable_variables
    paths = [weight.path for weight in weights]
    tape, names = record(model, x[:1], label[:1])
    with tempfile.TemporaryDirectory() as folder:
        tape.save(path := os.path.join(folder, "one_example.tape"), names)
        data = tf.data.Dataset.from_tensor_slices({"x": x[:, None], "label": label[:, None]})
        each = np.stack(list(rt.farm.replay(path, data, lambda tape: tape.backward("loss", paths).flatten())))
    tape, names = record(model, x, label)
    hessian = tape.hessian(names["loss"], weights, whole=True).numpy() + DAMPING * np.eye(each.shape[1])
    tape, names = record(model, *clean)
    return -each @ np.linalg.solve(hessian, tape.backward(names["loss"], weights).flatten().numpy())


def main() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    x, label = moons(rng, EXAMPLES)
    wrong = rng.choice(EXAMPLES, WRONG, replace=False)
    label[wrong] = 1.0 - label[wrong]
    clean, model = moons(rng, EXAMPLES), train(x, label)
    harm = influence(model, x, label, clean)
    precision = float(np.isin(np.argsort(-harm)[:WRONG], wrong).mean())
    print(f"{WRONG} of {EXAMPLES} labels are wrong; of the {WRONG} examples that raise the loss on clean data most,")
    print(f"{precision:.0%} are among them; by chance it would be {WRONG / EXAMPLES:.0%}")
    data = {"x": x, "label": label, "wrong": wrong, "clean": clean}
    return {**data, "model": model, "harm": harm, "precision": precision}


def draw(figure: Any, numbers: dict[str, Any]) -> None:
    x, harm, wrong = numbers["x"], numbers["harm"], numbers["wrong"]
    left, right = figure.subplots(1, 2)
    shown = left.scatter(*x.T, c=harm, s=22, cmap="coolwarm", vmin=-harm.max(), vmax=harm.max())
    left.scatter(*x[wrong].T, s=90, facecolors="none", edgecolors="black", label="label is wrong")
    left.set(title="Influence of each training example", xticks=[], yticks=[])
    left.legend(loc="lower left", fontsize=8)
    figure.colorbar(shown, ax=left, label="rise of the loss on clean data")
    hits = np.cumsum(np.isin(np.argsort(-harm), wrong))
    right.plot(np.arange(1, EXAMPLES + 1), hits, label="by influence", linewidth=2.0)
    right.plot([0, EXAMPLES], [0, WRONG], label="by chance", linestyle="--", color="gray")
    right.set(title="Wrong labels found", xlabel="labels looked at, the most harmful first", ylabel="of them wrong")
    right.legend()


if __name__ == "__main__":
    from _picture import start

    start(main, draw)
