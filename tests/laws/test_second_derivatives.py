"""Second derivatives of everything that takes means and variances, against differences of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors

_RANDOM = np.random.default_rng(11)
X = _RANDOM.normal(size=(4, 3))
WEIGHTS = _RANDOM.normal(size=(4, 3))
LABELS = np.array([0, 2, 1, 1])


@pytest.fixture(autouse=True, scope="module")
def _float64() -> Iterator[None]:
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


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


def check(f: Callable, way: Callable) -> None:
    np.testing.assert_allclose(way(f), slope_of_gradients(f, X), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_hessian_of_a_function(way: str, name: str):
    check(FUNCTIONS[name], WAYS[way])


@pytest.mark.parametrize("name", ["batch", "layer", "unit"])
@pytest.mark.parametrize("way", WAYS)
def test_hessian_through_a_layer(way: str, name: str):
    check(layer_function(name), WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["group", "rms"])
@pytest.mark.parametrize("way", WAYS)
def test_hessian_through_the_other_layers(way: str, name: str):
    check(layer_function(name), WAYS[way])


@pytest.mark.parametrize("way", MORE_WAYS)
def test_hessian_of_moments_asked_in_other_ways(way: str):
    check(over_moments, MORE_WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FUNCTIONS, "batch"])
@pytest.mark.parametrize("way", MORE_WAYS)
def test_hessian_asked_in_other_ways(way: str, name: str):
    check(layer_function(name) if name == "batch" else FUNCTIONS[name], MORE_WAYS[way])


@pytest.mark.parametrize("name", ["moments", "batch", "cross_entropy_with_soft_labels"])
def test_function_called_inside_a_function_is_refused_rather_than_wrong(name: str):
    f = layer_function(name) if name == "batch" else FUNCTIONS[name]
    with pytest.raises(errors.UnrepairableError, match=r"The second derivative passes .* record in eager code"):
        called_inside(f)


def test_first_derivative_of_a_function_called_inside_a_function():
    f = tf.function(over_moments)

    @tf.function
    def ask(x: tf.Tensor) -> tf.Tensor:
        with rt.Tape() as tape:
            y = f(x)
        return tape.gradient(y, x)

    np.testing.assert_allclose(ask(tf.constant(X)), stock(over_moments)[0], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in STOPPING])
def test_function_called_inside_a_function(name: str):
    check(FUNCTIONS[name], called_inside)


# ------------------------------------------------------------------ models


def model() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [
        keras.layers.Dense(4, activation="tanh"),
        keras.layers.BatchNormalization(epsilon=0.1),
        keras.layers.Dense(3, activation="softplus"),
        keras.layers.LayerNormalization(epsilon=0.1),
        keras.layers.Dense(1),
    ]
    return keras.Sequential([keras.Input([3]), *layers])


@pytest.mark.parametrize("wrapped", [False, True])
def test_hessian_of_a_model_by_data_and_weights(wrapped: bool):
    net = model()
    call = tf.function(net) if wrapped else net
    x, kernel = tf.constant(X), net.layers[0].kernel
    with rt.Tape() as tape:
        loss = tf.reduce_mean(call(x, training=True) ** 2)

    def f(at: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(net(at, training=True) ** 2)

    np.testing.assert_allclose(tape.hessian(loss, x), slope_of_gradients(f, X), rtol=1e-6, atol=1e-8)
    direction = tf.constant(_RANDOM.normal(size=kernel.shape))
    found = tape.hvp(loss, kernel, direction)
    start, ends = kernel.numpy(), []
    for sign in (1, -1):
        kernel.assign(start + sign * 1e-6 * direction)
        with tf.GradientTape() as stock:
            y = f(x)
        ends.append(stock.gradient(y, kernel.value).numpy())
    np.testing.assert_allclose(found, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-8)


def test_statistics_move_as_they_would_without_the_tape():
    layer, plain = (keras.layers.BatchNormalization(momentum=0.5) for _ in range(2))
    layer.build([None, 3])
    plain.build([None, 3])
    x = tf.constant(X)
    with rt.Tape() as tape:
        y = mixed(layer(x, training=True))
    tape.hessian(y, x)
    tape.gradient(tape.gradient(y, x), x)
    plain(x, training=True)
    np.testing.assert_array_equal(layer.moving_mean, plain.moving_mean)
    np.testing.assert_array_equal(layer.moving_variance, plain.moving_variance)


# ------------------------------------------------------------------ the contrast with the stock tape


def stock(f: Callable) -> tuple[np.ndarray, np.ndarray]:
    x = tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return gradient.numpy(), outer.jacobian(gradient, x).numpy()


STOPPED = {
    "moments": over_moments,
    "batch_normalization": lambda x: layer_function("batch")(x),
}


@pytest.mark.parametrize("name", STOPPED)
def test_first_derivative_is_the_stock_one_to_the_bit(name: str):
    f = STOPPED[name]
    x = tf.constant(X)
    with rt.Tape() as tape:
        y = f(x)
    np.testing.assert_array_equal(tape.gradient(y, x), stock(f)[0])
    # Also after somebody has asked for the second derivative.
    tape.hessian(y, x)
    np.testing.assert_array_equal(tape.gradient(y, x), stock(f)[0])


@pytest.mark.parametrize("name", STOPPED)
def test_second_derivative_is_right_where_the_stock_one_is_wrong(name: str):
    f = STOPPED[name]
    right = slope_of_gradients(f, X)
    assert np.max(np.abs(stock(f)[1] - right)) > 1e-2
    np.testing.assert_allclose(eager(f), right, rtol=1e-6, atol=1e-7)


def test_variance_written_out_has_the_hessian_of_moments():
    def variance(x: tf.Tensor) -> tf.Tensor:
        return mixed(tf.reduce_mean((x - tf.reduce_mean(x, 0)) ** 2, 0))

    def moments(x: tf.Tensor) -> tf.Tensor:
        return mixed(tf.nn.moments(x, [0])[1])

    np.testing.assert_allclose(eager(moments), eager(variance), rtol=1e-10, atol=1e-12)


def test_third_derivative_of_moments():
    x, v = tf.constant(X), tf.constant(WEIGHTS)

    def second(point: np.ndarray) -> np.ndarray:
        at = tf.constant(point)
        with rt.Tape() as tape:
            y = over_moments(at)
        return tape.hvp(y, at, v).numpy()

    with rt.Tape() as tape:
        y = over_moments(x)
    third = tape.jvp(tape.hvp(y, x, v), x, v).numpy()
    wanted = (second(X + 1e-6 * WEIGHTS) - second(X - 1e-6 * WEIGHTS)) / 2e-6
    np.testing.assert_allclose(third, wanted, rtol=1e-6, atol=1e-6)


def test_a_stop_that_was_meant_is_respected():
    # Not the pattern of a variance: here the user stops, and every order has to stop.
    x = tf.constant(X)
    with rt.Tape() as tape:
        y = tf.reduce_sum(x**2 * tf.stop_gradient(tf.reduce_mean(x, 0)) ** 2)
        centred = tf.reduce_sum(tf.math.squared_difference(x, tf.stop_gradient(x * x)))
    frozen = np.mean(X, 0) ** 2
    hessian = tape.hessian(y, x).numpy().reshape(12, 12)
    np.testing.assert_allclose(hessian, np.diag(np.tile(2 * frozen, 4)), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(tape.hessian(centred, x).numpy().reshape(12, 12), 2 * np.eye(12))


def test_a_sparse_gradient_is_asked_about():
    table = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=tf.float64)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1, 2]) ** 3)
    first = tape.gradient(loss, table)
    assert isinstance(first, tf.IndexedSlices)
    times = tf.constant([[0.0], [2.0], [1.0]], tf.float64)
    second = tf.convert_to_tensor(tape.gradient(first, table))
    np.testing.assert_allclose(second, 6.0 * tf.convert_to_tensor(table) * times)


def test_a_stock_gradient_of_a_function_inside_the_block_is_derived_twice_more():
    x = tf.constant([0.3, -1.2, 2.0], tf.float64)
    function = tf.function(lambda x: tf.sin(x) * x**2)

    def squared_gradient():
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(function(x))
        return tf.reduce_sum(inner.gradient(y, x) ** 2)

    with rt.Tape() as tape:
        z = squared_gradient()
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as middle:
            middle.watch(x)
            again = squared_gradient()
        first = middle.gradient(again, x)
    found = tape.gradient(z, x)
    np.testing.assert_allclose(found, first, rtol=1e-12)
    np.testing.assert_allclose(tape.gradient(found, x), outer.gradient(first, x), rtol=1e-12)


def test_ops_with_a_shape_among_their_attributes_are_computed_again():
    x = tf.constant([1.0, 2.0])
    with rt.Tape(keep="leaves") as tape:
        y = tf.reduce_sum(tf.ensure_shape(x * 2.0, [None]) ** 2)
    np.testing.assert_allclose(tape.gradient(y, x), [8.0, 16.0])
