"""Write the tapes that every later release must still read: `tests/golden/tapes/<version>-*.tape`.

Run once for a release, and never again for the same one: `python tools/golden_tapes.py`
"""

from __future__ import annotations

import json
from pathlib import Path

import keras
import tensorflow as tf

import retrotape as rt

FOLDER = Path(__file__).parents[1] / "tests" / "golden" / "tapes"


def model() -> tuple[rt.Tape, dict, str, list[str]]:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(3, "silu", name="hidden"), keras.layers.Dense(1, name="out")]
    net = keras.Sequential([keras.Input((2,)), *layers], name="net")
    adam, x = keras.optimizers.Adam(0.1), tf.constant([[0.5, -0.2], [1.0, 0.3]])
    with rt.Tape() as tape:
        adam.apply(tape.gradient(tf.reduce_sum(net(x) ** 2), net.trainable_variables), net.trainable_variables)
        loss = tf.reduce_sum(net(x) ** 2)
    return tape, {"x": x, "loss": loss, "rate": adam.learning_rate}, "loss", ["x", "rate", "net/hidden/kernel"]


def function() -> tuple[rt.Tape, dict, str, list[str]]:
    table = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="table")

    @tf.function
    def turned(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            x = tf.sin(x) + tf.nn.embedding_lookup(table, 1)
        return tf.reduce_sum(x)

    x = tf.constant([0.1, 0.2])
    with rt.Tape() as tape:
        y = turned(x)
    return tape, {"x": x, "y": y}, "y", ["x", "table"]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for make in (model, function):
        tape, names, target, sources = make()
        path = FOLDER / f"{rt.__version__}-{make.__name__}.tape"
        tape.save(path, names)
        grads = rt.load(path).gradient(target, sources, through_updates=True)
        numbers = {name: tf.convert_to_tensor(grad).numpy().tolist() for name, grad in zip(sources, grads, strict=True)}
        path.with_suffix(".json").write_text(json.dumps({"target": target, "gradients": numbers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
