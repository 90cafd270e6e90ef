"""Models and trainings as people write them: saved, loaded without their code, the same to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from files.models import EVERY_DAY, MODELS, L, run
from helpers.trips import assert_same, dense, trip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERY_DAY else pytest.mark.slow) for name in MODELS]
)
def test_model(name, tmp_path):
    tape, model, x, out, loss = run(name)
    made = trip(tape, {"x": x, "out": out, "loss": loss}, tmp_path)
    loaded, weights = made.loaded, model.trainable_variables
    assert loaded["out"].numpy().tobytes() == out.numpy().tobytes()
    assert loaded["loss"].numpy().tobytes() == loss.numpy().tobytes()
    assert {variable.name for variable in loaded.variables if variable.trainable} == {w.path for w in weights}
    grads = tape.gradient(loss, weights)
    for weight, grad, got in zip(weights, grads, loaded.gradient("loss", [w.path for w in weights]), strict=True):
        assert_same(got, grad)
        assert loaded[weight.path].trainable
    if x.dtype.is_floating:
        assert_same(loaded.gradient("loss", "x"), tape.gradient(loss, x))
    last = weights[-2]
    vector = tf.constant(np.random.default_rng(2).normal(size=last.shape), tf.float32)
    assert_same(loaded.hvp("loss", last.path, vector), tape.hvp(loss, last, vector), 1e-5)
    assert abs(tape.size() - made.size) < 0.2 * made.size
    ours = loaded.backward("loss", [weight.path for weight in weights])
    largest = max(np.abs(dense(grad)).max() for _, grad in ours.items())
    for (_, got), wanted in zip(ours.items(), _stock_gradients(name), strict=True):
        np.testing.assert_allclose(dense(got), dense(wanted), rtol=1e-5, atol=1e-6 * largest)


def _stock_gradients(name: str) -> list[Any]:
    """Return what TensorFlow's own tape says, from the same seed."""
    make, shape = MODELS[name]
    keras.utils.set_random_seed(7)
    random = np.random.default_rng(1)
    whole = name == "lstm"
    x = tf.constant(
        random.integers(7, size=shape) if whole else random.normal(size=shape), "int32" if whole else "float32"
    )
    model = make()
    model(x)
    with tf.GradientTape() as tape:
        out = model(x, training=True)
        labels = tf.constant([0, 1, 2, 0])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, out) + sum(model.losses)
    return tape.gradient(loss, [weight.value for weight in model.trainable_variables])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "spectral"])
def test_model_in_a_function(name, tmp_path):
    tape, model, x, out, loss = run(name, traced=True)
    loaded = trip(tape, {"x": x, "out": out, "loss": loss}, tmp_path).loaded
    np.testing.assert_allclose(loaded["out"], out, rtol=1e-5, atol=1e-6)
    weights = model.trainable_variables
    grads = [dense(grad) for grad in tape.gradient(loss, weights)]
    largest = max(np.abs(grad).max() for grad in grads)  # the gradient of a key's bias is rounding error only
    for got, grad in zip(loaded.gradient("loss", [weight.path for weight in weights]), grads, strict=True):
        np.testing.assert_allclose(dense(got), grad, rtol=2e-5, atol=2e-6 * largest)


def test_model_on_another_batch(tmp_path):
    tape, model, x, out, loss = run("custom layer")
    loaded = trip(tape, {"x": x, "out": out, "loss": loss}, tmp_path).loaded
    other = tf.constant(np.random.default_rng(9).normal(size=x.shape), tf.float32)
    again = loaded.replay({"x": other})
    np.testing.assert_allclose(again["out"], model(other, training=True), rtol=1e-5, atol=1e-6)
    with rt.Tape() as live:
        wanted = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
            tf.constant([0, 1, 2, 0]), model(other, training=True)
        )
    for weight, grad in zip(model.trainable_variables, live.gradient(wanted, model.trainable_variables), strict=True):
        assert_same(again.gradient("loss", weight.path), grad, 1e-5)


# ------------------------------------------------------------------ trainings


@pytest.fixture
def double_precision() -> Iterator[None]:
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "adam": keras.optimizers.Adam,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.8),
    "rmsprop": keras.optimizers.RMSprop,
    "adamw": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1),
}
WAYS = ("eager", "function", "called")
EVERY_DAY_TRAININGS = (("adam", "eager"), ("momentum", "function"), ("rmsprop", "called"), ("adamw", "eager"))


def train(name: str, rate: float, way: str = "eager") -> tuple[rt.Tape, Any, Any, list[Any]]:
    """Record three stock steps of a small network and the loss after them."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), L.Dense(2, "silu"), L.Dense(1, use_bias=False)])
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 2)))
    weights, optimizer = model.trainable_variables, OPTIMIZERS[name](rate)
    optimizer.build(weights)

    def loss() -> Any:
        return tf.reduce_mean((model(x) - 1.0) ** 2)

    called = tf.function(loss) if way == "called" else loss

    def step() -> None:
        with tf.GradientTape() as inner:
            value = called()
        optimizer.apply(inner.gradient(value, [weight.value for weight in weights]), weights)

    step = tf.function(step) if way == "function" else step
    with rt.Tape() as tape:
        for _ in range(3):
            step()
        final = loss()
    return tape, final, optimizer.learning_rate, weights


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, marks=() if (name, way) in EVERY_DAY_TRAININGS else pytest.mark.slow)
        for name in OPTIMIZERS
        for way in WAYS
    ],
)
def test_training(name, way, tmp_path):
    tape, final, rate, weights = train(name, 0.05, way)
    loaded = trip(tape, {"final": final, "rate": rate}, tmp_path).loaded
    if way == "eager":
        assert loaded["final"].numpy().tobytes() == final.numpy().tobytes()
    np.testing.assert_allclose(loaded["final"], final, rtol=1e-12)
    gap = 1e-6
    wanted = (float(train(name, 0.05 + gap)[1]) - float(train(name, 0.05 - gap)[1])) / (2 * gap)
    by_rate = float(loaded.gradient("final", "rate", through_updates=True))
    assert by_rate == pytest.approx(wanted, rel=1e-6)
    kernel = weights[0]
    if way != "called":  # where TensorFlow's own derivative of the function is the only one that the live tape has
        assert by_rate == pytest.approx(float(tape.gradient(final, rate, through_updates=True)), rel=1e-9)
        assert_same(
            loaded.gradient("final", kernel.path, through_updates=True),
            tape.gradient(final, kernel, through_updates=True),
            1e-8,
        )
    if way == "eager":  # a function is looked into, so that every value that it gave a variable counts
        assert len(loaded.versions(kernel.path)) == len(tape.versions(kernel)) >= 4
        assert_same(loaded.gradient("final", loaded.at(kernel.path, 2)), tape.gradient(final, tape.at(kernel, 2)), 1e-8)
    assert_same(loaded.gradient("final", kernel.path), tape.gradient(final, kernel), 1e-9)
    np.testing.assert_allclose(loaded[kernel.path].numpy(), kernel.numpy(), rtol=0.0 if way == "eager" else 1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_second_derivative_of_a_training(tmp_path):
    tape, final, rate, _ = train("adam", 0.05)
    loaded = trip(tape, {"final": final, "rate": rate}, tmp_path).loaded
    one = tf.constant(1.0, tf.float64)
    found = float(loaded.hvp("final", "rate", one, through_updates=True))
    assert found == pytest.approx(float(tape.hvp(final, rate, one, through_updates=True)), rel=1e-9)

    def first(at: float) -> float:
        tape, final, rate, _ = train("adam", at)
        return float(tape.gradient(final, rate, through_updates=True))

    assert found == pytest.approx((first(0.05 + 1e-6) - first(0.05 - 1e-6)) / 2e-6, rel=1e-5)
