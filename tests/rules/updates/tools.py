"""What the tests of updates share: where a variable starts, how it is read out, and central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

START = np.array([[1.0, 2.0], [3.0, 4.0], [-1.5, 0.5]])
WEIGHTS = np.array([[0.7, -1.1], [0.4, 1.3], [-0.9, 0.6]])
Arrays = dict[str, np.ndarray]


def dense(value: Any) -> np.ndarray:
    return tf.convert_to_tensor(value).numpy()


def or_zeros(grad: Any, like: np.ndarray) -> np.ndarray:
    found = np.zeros_like(like) if grad is None else dense(grad)
    assert found.shape == like.shape
    return found


def differences(f: Callable[[Arrays], float], at: Arrays, step: float = 1e-6) -> Arrays:
    """Return the central differences of `f` by every element of every array."""
    found = {}
    for name, array in at.items():
        grad = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[index] += sign * step
                ends.append(f({**at, name: moved}))
            grad[index] = (ends[0] - ends[1]) / (2 * step)
        found[name] = grad
    return found


def read_out(variable: tf.Variable) -> tf.Tensor:
    """Return a number that depends on every element, in its own way and not linearly."""
    return tf.reduce_sum(tf.sin(variable.read_value()) * WEIGHTS)


WHOLE = np.array([[0.3, -0.8], [1.2, 0.5], [0.9, -0.4]])
