"""Trains under MirroredStrategy with and without `GradientLog`; prints what differs, and what was logged, as JSON."""

from __future__ import annotations

import itertools
import json
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

DEVICES = ["CPU:0", "CPU:1"]
NUMBERS = np.random.default_rng(0)
X, Y = NUMBERS.normal(size=(21, 4)).astype("f"), NUMBERS.normal(size=(21, 1)).astype("f")  # the last batch is uneven


class Weights(keras.callbacks.Callback):
    """Keeps the weights before each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[list[np.ndarray]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.found.append([variable.numpy() for variable in self.model.trainable_variables])


def train(callbacks: list[Any]) -> tuple[list[bytes], Any]:
    keras.utils.set_random_seed(3)
    strategy = tf.distribute.MirroredStrategy(DEVICES)
    with strategy.scope():
        layers = [
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
        ]
        model = keras.Sequential([keras.Input([4]), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01, momentum=0.0), "mse", metrics=["mae"])
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False, callbacks=callbacks)
    variables = [*model.variables, *model.optimizer.variables, *(v for one in model.metrics for v in one.variables)]
    return [part.numpy().tobytes() for v in variables for part in strategy.experimental_local_results(v.value)], model


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(DEVICES))
    logged: dict[int, dict[str, float]] = {}
    weights = Weights()
    plain, _ = train([])
    callback = rt.callbacks.GradientLog(lambda found, step: logged.update({step: found}), every=1)
    watched, model = train([callback, weights])
    weights.found.append([variable.numpy() for variable in model.trainable_variables])
    changes = [
        [float(np.linalg.norm(one.astype("d") - other) / 0.01) for one, other in zip(before, after, strict=True)]
        for before, after in itertools.pairwise(weights.found)
    ]
    norms = [[logged[step][f"gradients/{v.path}/norm"] for v in model.trainable_variables] for step in logged]
    print(json.dumps({"same": plain == watched, "steps": list(logged), "changes": changes, "norms": norms}))


if __name__ == "__main__":
    main()
