"""Derivatives through steps do not depend on how the gradient of a step is computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from rules.updates.tools import Arrays
from rules.updates.training import (
    INPUTS,
    OPTIMIZERS,
    RATES,
    STEPS,
    Case,
    dense_values,
    make_case,
    sources,
    sparse_values,
)

pytestmark = pytest.mark.usefixtures("double_precision")


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


@pytest.mark.parametrize("way", ["own", "function", "compiled"])
def test_no_nan_on_other_ways_to_the_inner_gradient(way: str):
    inputs = INPUTS.copy()
    inputs[:, 1] = 0.0
    check_ways("adam", [way], {**dense_values(0.1), "inputs": inputs})
