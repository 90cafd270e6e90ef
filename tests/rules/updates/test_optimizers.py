"""Derivatives through steps of every stock Keras optimizer, against differences of the training itself."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from rules.updates.tools import Arrays
from rules.updates.training import (
    INPUTS,
    OPTIMIZERS,
    RATES,
    TABLE,
    dense_values,
    record,
    slope,
    sources,
    sparse_values,
    train,
)

pytestmark = pytest.mark.usefixtures("double_precision")


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
    # Of the weights; the other sources come in by way of each step's gradient, which one direction tells apart.
    values = dense_values(RATES.get(name, 0.1))
    make = OPTIMIZERS[name]
    tape, case, final = record(make, values)
    found = tape.gradient(final, case.weights, through_updates=True).numpy()
    for index in np.ndindex(found.shape):
        direction = np.zeros_like(found)
        direction[index] = 1.0
        wanted = slope(lambda moved: train(make, moved), values, "kernel", direction)
        np.testing.assert_allclose(found[index], wanted, rtol=1e-5, atol=1e-7, err_msg=f"{name} {index}")


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
        assert grad is not None or name == "lion", source  # which looks at signs only
        assert grad is None or np.all(np.isfinite(tf.convert_to_tensor(grad))), source


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
