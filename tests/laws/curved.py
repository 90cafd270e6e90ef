"""Functions and layers that take means and variances, and ways to their Hessians."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

_RANDOM = np.random.default_rng(11)
X = _RANDOM.normal(size=(4, 3))
WEIGHTS = _RANDOM.normal(size=(4, 3))
LABELS = np.array([0, 2, 1, 1])


def mixed(values: tf.Tensor) -> tf.Tensor:
    """Return a scalar that is nowhere linear in its argument."""
    weights = tf.constant(WEIGHTS.ravel()[: values.shape.num_elements()])
    return tf.reduce_sum(tf.sin(tf.reshape(values, [-1])) * weights)


def over_moments(x: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [0])
    return mixed(mean * variance) + mixed((x - mean) * tf.math.rsqrt(variance + 0.1))


def weighted(x: tf.Tensor) -> tf.Tensor:
    return mixed(tf.nn.weighted_moments(x, [0], tf.constant(np.abs(WEIGHTS)))[1])


def cross_entropy(x: tf.Tensor) -> tf.Tensor:
    sparse = tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, x)
    dense = tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(LABELS, 3, dtype=tf.float64), x * x)
    return tf.reduce_sum(sparse**2 + dense)


def dense_labels(x: tf.Tensor) -> tf.Tensor:
    # The labels depend on the source as well.
    return tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(x[::-1]), x) ** 2)


FUNCTIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "moments": over_moments,
    "moments_of_all": lambda x: mixed(tf.stack(tf.nn.moments(x, [0, 1]))),
    "moments_keepdims": lambda x: mixed(x / (tf.nn.moments(x, [1], keepdims=True)[1] + 0.1)),
    "weighted_moments": weighted,
    "reduce_variance": lambda x: mixed(tf.math.reduce_variance(x, 0)),
    "reduce_std": lambda x: mixed(tf.math.reduce_std(x, 1)),
    "reduce_logsumexp": lambda x: mixed(tf.reduce_logsumexp(x, 1) ** 2),
    "softmax": lambda x: mixed(tf.nn.softmax(x)),
    "cross_entropy": cross_entropy,
    "cross_entropy_with_soft_labels": dense_labels,
    "l2_normalize": lambda x: mixed(tf.math.l2_normalize(x, 1)),
    "keras_var": lambda x: mixed(keras.ops.var(x, axis=0)),
    "keras_std": lambda x: mixed(keras.ops.std(x, axis=1)),
    "keras_moments": lambda x: mixed(tf.stack(keras.ops.moments(x, axes=[0]))),
    "keras_logsumexp": lambda x: mixed(keras.ops.logsumexp(x, axis=1) ** 2),
    "keras_normalize": lambda x: mixed(keras.ops.normalize(x, axis=1)),
}
LAYERS: dict[str, Callable[[], Any]] = {
    "batch": lambda: keras.layers.BatchNormalization(epsilon=0.1),
    "layer": lambda: keras.layers.LayerNormalization(epsilon=0.1),
    "group": lambda: keras.layers.GroupNormalization(groups=3, epsilon=0.1),
    "unit": lambda: keras.layers.UnitNormalization(),
    "rms": lambda: keras.layers.RMSNormalization(epsilon=0.1),
    "spectral": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(3)),
}


@cache
def layer_function(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the layer as a function, with weights that are not what it starts from."""
    layer = LAYERS[name]()
    # GroupNormalization needs rows to normalize over; the rest takes them as well.
    shape = [2, 2, 3] if name == "group" else [4, 3]
    layer.build(shape if name == "group" else [None, 3])
    for number, variable in enumerate(layer.trainable_variables):
        shaped = np.linspace(0.5, 1.5, variable.shape.num_elements()).reshape(variable.shape)
        variable.assign(shaped + 0.1 * number)
    options = {"training": True} if name == "batch" else {}
    return lambda x: mixed(layer(tf.reshape(x, shape), **options))


def slope_of_gradients(f: Callable[[tf.Tensor], tf.Tensor], at: np.ndarray, h: float = 1e-6) -> np.ndarray:
    """Return the Hessian from differences of the stock tape's gradients, which are right."""

    def gradient(point: np.ndarray) -> np.ndarray:
        x = tf.constant(point)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tf.convert_to_tensor(tape.gradient(y, x)).numpy()

    rows = np.zeros(at.shape + at.shape)
    for index in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[index] = h
        rows[index] = (gradient(at + step) - gradient(at - step)) / (2 * h)
    return rows


@cache
def right_hessian(f: Callable[[tf.Tensor], tf.Tensor]) -> np.ndarray:
    """Return the Hessian at `X`, which every way to it is held against."""
    return slope_of_gradients(f, X)


def eager(f: Callable) -> np.ndarray:
    x = tf.constant(X)
    with rt.Tape() as tape:
        y = f(x)
    return tape.hessian(y, x).numpy()


def inside(f: Callable) -> np.ndarray:
    @tf.function
    def ask(x: tf.Tensor) -> tf.Tensor:
        with rt.Tape() as tape:
            y = f(x)
        return tape.hessian(y, x)

    return ask(tf.constant(X)).numpy()


def called(f: Callable) -> np.ndarray:
    return eager(tf.function(f))


def called_inside(f: Callable) -> np.ndarray:
    return inside(tf.function(f))


def repeated(f: Callable) -> np.ndarray:
    x = tf.constant(X)
    with rt.Tape() as tape:
        y = f(x)
    return tape.jacobian(tape.gradient(y, x), x).numpy()


def nested(f: Callable) -> np.ndarray:
    x = tf.constant(X)
    with rt.Tape() as outer:
        with rt.Tape() as inner:
            y = f(x)
        gradient = inner.gradient(y, x)
    return outer.jacobian(gradient, x).numpy()


def stock_inside_ours(f: Callable) -> np.ndarray:
    x = tf.constant(X)
    with rt.Tape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return outer.jacobian(gradient, x).numpy()


WAYS = {f.__name__: f for f in (eager, inside, called)}
MORE_WAYS = {f.__name__: f for f in (repeated, nested, stock_inside_ours)}
# Those that stop the gradient of the mean inside the variance, which only the second derivative notices.
STOPPING = (
    "moments",
    "moments_of_all",
    "moments_keepdims",
    "keras_moments",
    "cross_entropy",
    "cross_entropy_with_soft_labels",
)


def stock(f: Callable) -> tuple[np.ndarray, np.ndarray]:
    x = tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return gradient.numpy(), outer.jacobian(gradient, x).numpy()
