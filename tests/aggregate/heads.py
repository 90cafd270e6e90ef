"""A net with several heads, trained by each method in a `train_step`."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

HEADS = ("a", "b", "c", "d", "e")  # enough for Krum
RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype("float32")
Y = np.tanh(X @ RNG.normal(size=(4, 5))).astype("float32") * np.array([1.0, 0.3, 3.0, 1.0, 0.1], "float32")

ARGUMENTS: dict[str, dict[str, Any]] = {  # of methods that need some, or that draw at random
    "Constant": {"preference": [1.0, 2.0, 0.5, 1.0, 1.0]},
    "Weighted": {"preference": [1.0, 2.0, 0.5, 1.0, 1.0]},
    "GradDrop": {"seed": 1},
    "GradVac": {"seed": 1},
    "PCGrad": {"seed": 1},
    "Random": {"seed": 1},
    "DWA": {"steps_per_epoch": 2},
    "Krum": {"selected": 2},
    "GradNorm": {"learning_rate": 0.1},
}
OF_EXAMPLES = {"DPSGD"}  # its rows are those of examples, not of losses


def is_method(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, rt.aggregate.Aggregator) and not inspect.isabstract(value)


METHODS = sorted(name for name in rt.aggregate.__all__ if is_method(getattr(rt.aggregate, name)))
METHODS = [name for name in METHODS if name not in OF_EXAMPLES]


def make(name: str) -> rt.aggregate.Aggregator:
    return getattr(rt.aggregate, name)(**ARGUMENTS.get(name, {}))


class Net(keras.Model):
    """A trunk with several heads; the `train_step` is that of the documentation."""

    def __init__(self, method: rt.aggregate.Aggregator, nonfinite: str = "raise") -> None:
        super().__init__()
        self.trunk = keras.layers.Dense(6, "tanh")
        self.heads = {name: keras.layers.Dense(1, name=name) for name in HEADS}
        self.method, self.nonfinite = method, nonfinite
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        features = self.trunk(x)
        return {name: head(features) for name, head in self.heads.items()}

    def train_step(self, data):
        x, y = data
        with rt.Tape() as tape:
            made = self(x, training=True)
            targets = dict(zip(HEADS, tf.unstack(y, axis=1), strict=True))
            losses = {name: mean_of_batch((made[name][:, 0] - targets[name]) ** 2) for name in HEADS}
        rows = tape.backward_each(losses, self.trainable_variables)
        self.method(rows, nonfinite=self.nonfinite).apply(self.optimizer)
        self.tracker.update_state(tf.add_n(list(losses.values())))
        return {"loss": self.tracker.result()}


def mean_of_batch(values: tf.Tensor) -> tf.Tensor:
    """Return the mean over the whole batch, of which a replica has a part."""
    return tf.reduce_mean(values) / tf.distribute.get_strategy().num_replicas_in_sync


def fit(model: keras.Model, epochs: int = 3, **compile_options: Any) -> list[float]:
    optimizer = keras.optimizers.SGD(0.05)
    if isinstance(model.method, rt.aggregate.UncertaintyWeighting):  # it has a variable that the optimizer trains
        optimizer.build([*model.trainable_variables, *model.method.build(len(HEADS))])
    model.compile(optimizer, **compile_options)
    return model.fit(X, Y, batch_size=32, epochs=epochs, verbose=0, shuffle=False).history["loss"]


def net(name: str, **options: Any) -> Net:
    keras.utils.set_random_seed(1)
    model = Net(make(name), **options)
    model(X)
    return model
