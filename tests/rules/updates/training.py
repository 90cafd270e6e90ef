"""A short training with any stock Keras optimizer, recorded or not, in float64: ask for `double_precision`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from rules.updates.tools import Arrays

STEPS = 3
_RANDOM = np.random.default_rng(7)
KERNEL = _RANDOM.normal(size=(3, 2))
TABLE = _RANDOM.normal(size=(5, 2))
INPUTS = _RANDOM.normal(size=(4, 3))
IDS = np.array([0, 2, 2, 4])  # one row twice, two rows never
TARGETS = _RANDOM.normal(size=(4, 2))
IMPORTANCE = np.array([0.7, 1.3, 0.4, 1.1])


# ------------------------------------------------------------------ optimizers


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that falls with the steps, from a variable."""

    def __init__(self, rate: float) -> None:
        self.rate = tf.Variable(rate, dtype=tf.float64, trainable=False)

    def __call__(self, step: Any) -> tf.Tensor:
        return self.rate / (1.0 + 0.5 * tf.cast(step, tf.float64))


Make = Callable[[Any], keras.optimizers.Optimizer]
_O = keras.optimizers


def _muon(rate: Any) -> keras.optimizers.Optimizer:
    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 13):
        pytest.skip("a step of Muon fails on TensorFlow before Keras 3.13, with or without a tape")
    return _O.Muon(rate)


BASES: dict[str, Make] = {
    "sgd": lambda rate: _O.SGD(rate),
    "momentum": lambda rate: _O.SGD(rate, momentum=0.8),
    "nesterov": lambda rate: _O.SGD(rate, momentum=0.8, nesterov=True),
    "adam": lambda rate: _O.Adam(rate),
    "amsgrad": lambda rate: _O.Adam(rate, amsgrad=True, beta_2=0.6),
    "adamw": lambda rate: _O.AdamW(rate, weight_decay=0.1),
    "nadam": lambda rate: _O.Nadam(rate),
    "adamax": lambda rate: _O.Adamax(rate),
    "rmsprop": lambda rate: _O.RMSprop(rate),
    "rmsprop_centered": lambda rate: _O.RMSprop(rate, momentum=0.7, centered=True),
    "adagrad": lambda rate: _O.Adagrad(rate),
    "adadelta": lambda rate: _O.Adadelta(rate, epsilon=1e-3),
    "lion": lambda rate: _O.Lion(rate),
    "ftrl": lambda rate: _O.Ftrl(rate, l1_regularization_strength=0.01, l2_regularization_strength=0.02),
    "lamb": lambda rate: _O.Lamb(rate),
    "adafactor": lambda rate: _O.Adafactor(rate),
    "muon": _muon,
    "loss_scale": lambda rate: _O.LossScaleOptimizer(_O.SGD(rate, momentum=0.8), initial_scale=64.0),
}
EXTRAS: dict[str, Make] = {
    "clipnorm": lambda rate: _O.SGD(rate, momentum=0.8, clipnorm=0.3),
    "global_clipnorm": lambda rate: _O.Adam(rate, global_clipnorm=0.3),
    "clipvalue": lambda rate: _O.SGD(rate, clipvalue=0.15),
    "weight_decay": lambda rate: _O.SGD(rate, weight_decay=0.2),
    "ema": lambda rate: _O.SGD(rate, use_ema=True, ema_momentum=0.6, ema_overwrite_frequency=2),
    "accumulated": lambda rate: _O.SGD(rate, momentum=0.8, gradient_accumulation_steps=2),
    "schedule": lambda rate: _O.Adam(rate if isinstance(rate, Schedule) else Schedule(rate)),
}
OPTIMIZERS = {**BASES, **EXTRAS}
RATES = {"muon": 0.02, "lion": 0.03, "adadelta": 0.9, "adafactor": 0.05}


def rate_source(optimizer: Any) -> Any:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return optimizer._learning_rate.rate if isinstance(optimizer._learning_rate, Schedule) else optimizer.learning_rate


# ------------------------------------------------------------------ models


class Case(NamedTuple):
    """A training to run: the layer, the optimizer, and the loss of a step and of the end."""

    layer: Any
    optimizer: Any
    data: tf.Tensor
    importance: tf.Tensor

    @property
    def weights(self) -> keras.Variable:
        return self.layer.trainable_variables[0]

    def loss(self) -> tf.Tensor:
        errors = tf.reduce_sum((tf.tanh(self.layer(self.data)) - TARGETS) ** 2, -1)
        return tf.reduce_sum(errors * self.importance) / 4.0

    def step(self) -> None:
        with tf.GradientTape() as tape:
            loss = self.loss()
            scaled = self.optimizer.scale_loss(loss) if hasattr(self.optimizer, "scale_loss") else loss
        self.optimizer.apply(tape.gradient(scaled, [self.weights]), [self.weights])

    def final(self) -> tf.Tensor:
        """Return a loss that looks at the weights alone, in which every element counts in its own way."""
        factors = tf.reshape(
            tf.range(1.0, self.weights.shape.num_elements() + 1.0, dtype=tf.float64), self.weights.shape
        )
        return tf.reduce_sum(tf.sin(self.weights * factors))


def make_case(make: Make, values: Arrays) -> Case:
    if "table" in values:
        layer, data = keras.layers.Embedding(5, 2), tf.constant(IDS)
        layer.build((None,))
        layer.embeddings.assign(values["table"])
    else:
        layer, data = keras.layers.Dense(2, use_bias=False), tf.constant(values["inputs"])
        layer.build((None, 3))
        layer.kernel.assign(values["kernel"])
    optimizer = make(float(values["rate"]))
    optimizer.build(layer.trainable_variables)
    return Case(layer, optimizer, data, tf.constant(values["importance"]))


def train(make: Make, values: Arrays, steps: int = STEPS) -> float:
    case = make_case(make, values)
    for _ in range(steps):
        case.step()
    return float(case.final())


def dense_values(rate: float) -> Arrays:
    return {"rate": np.array(rate), "kernel": KERNEL, "inputs": INPUTS, "importance": IMPORTANCE}


def sparse_values(rate: float) -> Arrays:
    return {"rate": np.array(rate), "table": TABLE, "importance": IMPORTANCE}


def sources(case: Case, values: Arrays) -> dict[str, Any]:
    found = {"rate": rate_source(case.optimizer), "importance": case.importance}
    if "table" in values:
        return {**found, "table": case.weights}
    return {**found, "kernel": case.weights, "inputs": case.data}


def record(make: Make, values: Arrays, steps: int = STEPS, keep: str = "needed") -> tuple[rt.Tape, Case, tf.Tensor]:
    case = make_case(make, values)
    with rt.Tape(keep=keep) as tape:
        for _ in range(steps):
            case.step()
        final = case.final()
    return tape, case, final


def slope(f: Callable[[Arrays], float], values: Arrays, name: str, direction: np.ndarray) -> float:
    """Return how `f` changes along a direction, by a central difference."""
    h = 1e-6
    ahead, behind = ({**values, name: values[name] + step * direction} for step in (h, -h))
    return (f(ahead) - f(behind)) / (2 * h)
