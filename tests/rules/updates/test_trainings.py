"""Trainings looked at from the middle, twice, later, and from inside Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from rules.updates.tools import Arrays
from rules.updates.training import (
    INPUTS,
    OPTIMIZERS,
    STEPS,
    TARGETS,
    dense_values,
    make_case,
    record,
    slope,
    sources,
    train,
)

pytestmark = pytest.mark.usefixtures("double_precision")


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
