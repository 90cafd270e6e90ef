"""Trainings that go wrong at a step that is known: a seeded generator of models, data and bad batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

SIZE, WIDTH = 4, 6  # of a batch


class LogOfScale(keras.layers.Layer):
    """The log of zero for a batch of zeros."""

    def call(self, x):
        return x + 0.1 * tf.math.log(tf.reduce_max(tf.abs(x)))


class Share(keras.layers.Layer):
    """Zero over zero for a batch of zeros."""

    def call(self, x):
        return tf.abs(x) / tf.reduce_sum(tf.abs(x))


class Length(keras.layers.Layer):
    """Finite for a batch of zeros, but not its gradient: a scale is trained."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        return tf.concat([x, tf.norm(x * self.scale, axis=-1, keepdims=True)], axis=-1)


class Power(keras.layers.Layer):
    """Overflows for a batch of large numbers."""

    def call(self, x):
        return tf.exp(x) * 0.1


class Kind(NamedTuple):
    """A way to go wrong: the layer, the batch, and what the tape has to say."""

    layer: type
    batch: float
    op: str
    backward: bool
    cause: str


KINDS = [
    Kind(LogOfScale, 0.0, "Log", False, "LOG_OF_ZERO"),
    Kind(Share, 0.0, "RealDiv", False, "ZERO_OVER_ZERO"),
    Kind(Length, 0.0, "Sqrt", True, "NORM_AT_ZERO"),
    Kind(Power, 1e4, "Exp", False, "EXP_OVERFLOW"),
]


class Training(NamedTuple):
    """A training that goes wrong.

    Attributes:
      make: Returns the model, the same each time.
      x: The inputs of all steps.
      y: The targets.
      bad: The step that goes wrong.
      kind: How.
    """

    make: Callable[..., Any]
    x: np.ndarray
    y: np.ndarray
    bad: int
    kind: Kind

    @property
    def steps(self) -> int:
        return len(self.x) // SIZE

    def fit(self, model: Any, steps: int | None = None, **options: Any) -> Any:
        """Train in order, for some of the steps."""
        end = SIZE * (self.steps if steps is None else steps)
        return model.fit(self.x[:end], self.y[:end], batch_size=SIZE, shuffle=False, verbose=0, **options)


def training(seed: int, steps: int = 40) -> Training:
    """Return a training: model, optimizer, data and bad step are drawn."""
    draw = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    optimizer = [keras.optimizers.Adam, keras.optimizers.RMSprop, keras.optimizers.SGD][draw.integers(3)]
    widths = draw.integers(3, 12, size=draw.integers(1, 4)).tolist()
    dropout, normalize, relu = (bool(bit) for bit in draw.integers(2, size=3))
    relu = relu and kind.layer is not Length  # of zeros, it would pass no gradient back
    x = draw.normal(size=(steps * SIZE, WIDTH)).astype("f4")
    y = draw.normal(size=(steps * SIZE, 1)).astype("f4")
    bad = int(draw.integers(5, steps - 1))
    x[bad * SIZE : (bad + 1) * SIZE] = kind.batch

    def make(**options: Any) -> Any:
        keras.utils.set_random_seed(seed)
        layers = [keras.Input([WIDTH]), kind.layer(dtype="float32", name="odd")]
        for at, width in enumerate(widths):
            layers.append(keras.layers.Dense(width, activation="relu" if relu else "tanh", name=f"dense_{at}"))
            if normalize:
                layers.append(keras.layers.BatchNormalization(name=f"norm_{at}"))
            if dropout:
                layers.append(keras.layers.Dropout(0.2, name=f"dropout_{at}"))
        model = keras.Sequential([*layers, keras.layers.Dense(1, dtype="float32", name="out")], name="net")
        model.compile(optimizer(name="optimizer"), "mse", metrics=["mae"], **options)
        return model

    return Training(make, x, y, bad, kind)


def state(model: Any) -> dict[str, np.ndarray]:
    """Return all that a model has learned, by path."""
    return {variable.path: variable.numpy() for variable in [*model.variables, *model.optimizer.variables]}
