"""A model trained with either tape, batch after batch, from the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

STEPS = 8
L = keras.layers
Step = Callable[[int], Any]
# Bit for bit in eager code. Inside a function TensorFlow rewrites the graph, and sums may change their order.
CLOSE = {False: 0.0, True: 1e-5}


def batch(step: int, *shape: int) -> tf.Tensor:
    return tf.constant(np.random.RandomState(step).normal(size=shape), tf.float32)


def labels(step: int, count: int, classes: int) -> tf.Tensor:
    return tf.constant(np.random.RandomState(1000 + step).randint(classes, size=count))


def trained(make: Callable[[Any], tuple[list[Any], Step]], tape_type: Any) -> list[np.ndarray]:
    keras.utils.set_random_seed(7)
    models, step = make(tape_type)
    before = [weight.numpy() for model in models for weight in model.trainable_variables]
    for number in range(STEPS):
        step(number)
    after = [weight.numpy() for model in models for weight in model.trainable_variables]
    changed = [not np.array_equal(one, other) for one, other in zip(before, after, strict=True)]
    assert sum(changed) >= 0.8 * len(changed), "nothing was learnt"
    return [weight.numpy() for model in models for weight in model.variables]


def same_weights(make: Callable[[Any], tuple[list[Any], Step]], tolerance: float) -> None:
    stock = trained(make, tf.GradientTape)
    ours = trained(make, rt.Tape)
    assert len(ours) == len(stock)
    for one, other in zip(ours, stock, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def as_function(function: Callable[..., Any], traced: bool) -> Callable[..., Any]:
    return tf.function(function) if traced else function
