"""Derivatives through steps of every stock Keras optimizer, against differences of the training itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

Arrays = dict[str, np.ndarray]
STEPS = 3
_RANDOM = np.random.default_rng(7)
KERNEL = _RANDOM.normal(size=(3, 2))
TABLE = _RANDOM.normal(size=(5, 2))
INPUTS = _RANDOM.normal(size=(4, 3))
IDS = np.array([0, 2, 2, 4])  # one row twice, two rows never
TARGETS = _RANDOM.normal(size=(4, 2))
IMPORTANCE = np.array([0.7, 1.3, 0.4, 1.1])


@pytest.fixture(autouse=True, scope="module")
def _float64() -> Iterator[None]:
    # Optimizers keep their hyper-parameters in floatx, and differences need all the digits.
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


# ------------------------------------------------------------------ optimizers


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that falls with the steps, from a variable."""

    def __init__(self, rate: float) -> None:
        self.rate = tf.Variable(rate, dtype=tf.float64, trainable=False)

    def __call__(self, step: Any) -> tf.Tensor:
        return self.rate / (1.0 + 0.5 * tf.cast(step, tf.float64))


Make = Callable[[Any], keras.optimizers.Optimizer]
_O = keras.optimizers
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
    "muon": lambda rate: _O.Muon(rate),
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
    """Return how `f` changes along a direction: fourth order, so that the step may be large."""
    h = 1e-5

    def at(factor: float) -> float:
        return f({**values, name: values[name] + factor * h * direction})

    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h)


def check(name: str, values: Arrays, rtol: float = 2e-6) -> None:
    """Compare each derivative along a direction with differences of the whole training."""
    make = OPTIMIZERS[name]
    tape, case, final = record(make, values)
    np.testing.assert_allclose(float(final), train(make, values), rtol=1e-12)  # recording changes nothing
    grads = tape.gradient(final, sources(case, values), through_updates=True)
    random = np.random.default_rng(3)
    for source, grad in grads.items():
        direction = random.normal(size=values[source].shape)
        assert grad is not None or name == "lion", source
        found = 0.0 if grad is None else float(np.sum(tf.convert_to_tensor(grad).numpy() * direction))
        wanted = slope(lambda moved: train(make, moved), values, source, direction)
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=1e-7, err_msg=f"{name} by {source}")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dense_steps(name: str):
    check(name, dense_values(RATES.get(name, 0.1)))


FAST_SPARSE = ["sgd", "momentum", "adam", "adagrad", "clipnorm"]


@pytest.mark.parametrize("name", FAST_SPARSE)
def test_sparse_steps(name: str):
    check(name, sparse_values(RATES.get(name, 0.1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in FAST_SPARSE])
def test_sparse_steps_of_the_rest(name: str):
    check(name, sparse_values(RATES.get(name, 0.1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_element(name: str):
    values = dense_values(RATES.get(name, 0.1))
    make = OPTIMIZERS[name]
    tape, case, final = record(make, values)
    for source, grad in tape.gradient(final, sources(case, values), through_updates=True).items():
        found = np.zeros_like(values[source]) if grad is None else tf.convert_to_tensor(grad).numpy()
        for index in np.ndindex(values[source].shape):
            direction = np.zeros_like(values[source])
            direction[index] = 1.0
            wanted = slope(lambda moved: train(make, moved), values, source, direction)
            np.testing.assert_allclose(found[index], wanted, rtol=1e-5, atol=1e-7, err_msg=f"{name} {source}{index}")


# ------------------------------------------------------------------ places without a derivative


def test_lion_has_no_derivative_through_its_sign():
    values = dense_values(0.03)
    tape, case, final = record(OPTIMIZERS["lion"], values)
    grads = tape.gradient(final, sources(case, values), through_updates=True)
    # What goes in through the sign counts as zero; what goes past it, the weights themselves, counts in full.
    factors = np.arange(1.0, 7.0).reshape(3, 2)
    np.testing.assert_allclose(grads["kernel"], factors * np.cos(case.weights.numpy() * factors), rtol=1e-12)
    for name in ("inputs", "importance"):
        assert grads[name] is None or not np.any(grads[name])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_nan_where_a_gradient_is_zero(name: str):
    # A feature that is always zero gives a row of the gradient that is exactly zero.
    inputs = INPUTS.copy()
    inputs[:, 1] = 0.0
    values = {**dense_values(RATES.get(name, 0.1)), "inputs": inputs}
    tape, case, final = record(OPTIMIZERS[name], values)
    grads = tape.gradient(final, sources(case, values), through_updates=True)
    for source, grad in grads.items():
        assert grad is None or np.all(np.isfinite(tf.convert_to_tensor(grad))), source


@pytest.mark.parametrize("way", ["own", "function", "compiled"])
def test_no_nan_on_other_ways_to_the_inner_gradient(way: str):
    inputs = INPUTS.copy()
    inputs[:, 1] = 0.0
    check_ways("adam", [way], {**dense_values(0.1), "inputs": inputs})


@pytest.mark.parametrize("name", ["adam", "adamax", "rmsprop", "adagrad", "adadelta", "nadam", "amsgrad"])
def test_unused_rows_of_a_table_stay_as_they_are(name: str):
    # Their second moments are zero, where the root has no finite slope; nothing leads from there to the sources.
    values = sparse_values(RATES.get(name, 0.1))
    tape, case, final = record(OPTIMIZERS[name], values)
    grads = tape.gradient(final, sources(case, values), through_updates=True)
    for source, grad in grads.items():
        assert np.all(np.isfinite(tf.convert_to_tensor(grad))), source
    factors = np.arange(1.0, 11.0).reshape(5, 2)
    table = tf.convert_to_tensor(grads["table"]).numpy()
    unused = [1, 3]
    np.testing.assert_allclose(table[unused], (factors * np.cos(TABLE * factors))[unused], rtol=1e-12)


# ------------------------------------------------------------------ three ways to the inner gradient


def _with_own_tape(case: Case, tape: rt.Tape) -> None:
    loss = case.loss()
    case.optimizer.apply([tape.gradient(loss, case.weights)], [case.weights])


def _with_another_tape(case: Case, tape: rt.Tape) -> None:
    with rt.Tape() as inner:
        loss = case.loss()
    case.optimizer.apply([inner.gradient(loss, case.weights)], [case.weights])


WAYS: dict[str, Callable[[Case], Callable[[rt.Tape], None]]] = {
    "stock": lambda case: lambda tape: case.step(),
    "own": lambda case: lambda tape: _with_own_tape(case, tape),
    "another": lambda case: lambda tape: _with_another_tape(case, tape),
    "function": lambda case: (lambda step: lambda tape: step())(tf.function(case.step)),
    "compiled": lambda case: (lambda step: lambda tape: step())(tf.function(case.step, jit_compile=True)),
}


def answers(name: str, way: str, values: Arrays) -> Arrays:
    case = make_case(OPTIMIZERS[name], values)
    step = WAYS[way](case)
    with rt.Tape() as tape:
        for _ in range(STEPS):
            step(tape)
        final = case.final()
    grads = tape.gradient(final, sources(case, values), through_updates=True)
    return {source: tf.convert_to_tensor(grad).numpy() for source, grad in grads.items() if grad is not None}


def check_ways(name: str, ways: list[str], values: Arrays) -> None:
    wanted = answers(name, "stock", values)
    for way in ways:
        found = answers(name, way, values)
        assert found.keys() == wanted.keys(), way
        for source in wanted:
            np.testing.assert_allclose(
                found[source], wanted[source], rtol=1e-9, atol=1e-12, err_msg=f"{way} by {source}"
            )


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_inner_gradient_from_anywhere(name: str):
    check_ways(name, ["own", "another", "function"], dense_values(0.1))


def test_inner_gradient_from_anywhere_for_a_table():
    check_ways("adam", ["own", "another", "function"], sparse_values(0.1))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ("momentum", "adam", "loss_scale")])
def test_inner_gradient_from_anywhere_for_the_rest(name: str):
    check_ways(name, ["own", "another", "function"], dense_values(RATES.get(name, 0.1)))


def test_inner_step_compiled():
    check_ways("momentum", ["compiled"], dense_values(0.1))


@pytest.mark.slow
def test_loss_scale_inside_a_function():
    check_ways("loss_scale", ["function"], dense_values(0.1))


# ------------------------------------------------------------------ further


def test_every_step_of_the_rate():
    # The rate changes between the steps: each value of it has a derivative of its own.
    values = dense_values(0.1)
    case = make_case(OPTIMIZERS["sgd"], values)
    rates = [0.1, 0.07, 0.04]

    def run(moved: list[float]) -> float:
        again = make_case(OPTIMIZERS["sgd"], values)
        for rate in moved:
            again.optimizer.learning_rate.assign(rate)
            again.step()
        return float(again.final())

    with rt.Tape() as tape:
        for rate in rates:
            case.optimizer.learning_rate.assign(rate)
            case.step()
        final = case.final()
    for number in range(3):
        found = float(tape.gradient(final, tape.at(case.optimizer.learning_rate, number + 1)))
        ends = [[*rates[:number], rates[number] + h, *rates[number + 1 :]] for h in (1e-6, -1e-6)]
        np.testing.assert_allclose(found, (run(ends[0]) - run(ends[1])) / 2e-6, rtol=1e-6)


def test_middle_of_a_training():
    values = dense_values(0.1)
    tape, case, final = record(OPTIMIZERS["sgd"], values)
    assert len(tape.versions(case.weights)) == STEPS + 1
    for number in range(STEPS):
        start = tape.versions(case.weights)[number].numpy()

        def rest(moved: Arrays, left: int = STEPS - number) -> float:
            return train(OPTIMIZERS["sgd"], moved, left)

        direction = np.random.default_rng(number).normal(size=start.shape)
        found = float(np.sum(tape.gradient(final, tape.at(case.weights, number)).numpy() * direction))
        wanted = slope(rest, {**values, "kernel": start}, "kernel", direction)
        np.testing.assert_allclose(found, wanted, rtol=1e-7)


def test_second_derivative_by_the_rate():
    values = dense_values(0.1)

    def first(rate: float) -> float:
        tape, case, final = record(OPTIMIZERS["adam"], {**values, "rate": np.array(rate)}, 2)
        return float(tape.gradient(final, case.optimizer.learning_rate, through_updates=True))

    tape, case, final = record(OPTIMIZERS["adam"], values, 2)
    rate = case.optimizer.learning_rate
    found = float(tape.hvp(final, rate, tf.constant(1.0, tf.float64), through_updates=True))
    np.testing.assert_allclose(found, (first(0.1 + 1e-6) - first(0.1 - 1e-6)) / 2e-6, rtol=1e-5)


def test_asked_after_training_went_on():
    values = dense_values(0.1)
    tape, case, final = record(OPTIMIZERS["adam"], values)
    early = tape.gradient(final, sources(case, values), through_updates=True)
    for _ in range(2):
        case.step()
    late = tape.gradient(final, sources(case, values), through_updates=True)
    for source in early:
        np.testing.assert_array_equal(early[source], late[source])


def test_training_under_the_tape_is_the_training_without():
    values = dense_values(0.1)
    for name in ("adam", "ema", "accumulated"):
        _, recorded, _ = record(OPTIMIZERS[name], values)
        plain = make_case(OPTIMIZERS[name], values)
        for _ in range(STEPS):
            plain.step()
        np.testing.assert_array_equal(recorded.weights.numpy(), plain.weights.numpy())


def test_model_compiled_and_fitted_inside_the_block():
    # What Keras does in `fit` is a function that assigns; the weights before and after it are on the tape.
    layer = keras.layers.Dense(1, use_bias=False)
    model = keras.Sequential([keras.Input([3]), layer])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = INPUTS, TARGETS[:, :1]
    start = layer.kernel.numpy()
    with rt.Tape() as tape:
        model.train_on_batch(x, y)
        final = tf.reduce_sum(layer.kernel**2)
    np.testing.assert_array_equal(tape.versions(layer.kernel)[0].numpy(), start)
    found = tape.gradient(final, tape.at(layer.kernel, 0)).numpy()
    # The step is linear: w' = (1 - 2 rate / n XᵀX) w + ...
    jacobian = np.eye(3) - 0.1 * 2 / 4 * x.T @ x
    np.testing.assert_allclose(found, jacobian @ (2 * layer.kernel.numpy()), rtol=1e-9)
