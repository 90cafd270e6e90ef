"""Second order, and derivatives through the steps of an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import EmptyTapeError


def test_2_1_product_of_hessian_and_vector():
    x = tf.Variable(2.0)
    with rt.Tape() as tape:
        cube = tf.pow(x, 3.0)
    assert float(tape.hvp(cube, x, tf.constant(1.0))) == pytest.approx(12.0)
    assert float(tape.hvp(cube, x, tf.constant(-0.5))) == pytest.approx(-6.0)


def bowl(pair: list[Any]) -> tf.Tensor:
    return tf.square(pair[0]) + tf.square(pair[1])


def descend(optimizer: Any, steps: int, start: tuple[float, float] = (1.0, 2.0)) -> tuple[rt.Tape, Any, list[Any]]:
    """Record stock steps down a² + b²; return the tape, the loss after them and the variables."""
    pair = [tf.Variable(value, dtype=keras.config.floatx()) for value in start]
    with rt.Tape() as tape:
        for _ in range(steps):
            grads = tape.gradient(bowl(pair), pair)
            optimizer.apply_gradients(zip(grads, pair, strict=True))
        after = bowl(pair)
    return tape, after, pair


def difference(function: Callable[[float], float], at: float, gap: float = 1e-5) -> float:
    return (function(at + gap) - function(at - gap)) / (2.0 * gap)


def test_2_2_loss_after_a_step_by_the_learning_rate():
    sgd = keras.optimizers.SGD(0.1)
    tape, after, pair = descend(sgd, steps=1)
    # The step shrinks both by 1 - 2 r, so that the loss after it is 5 (1 - 2 r)².
    assert float(after) == pytest.approx(5.0 * 0.8**2)
    assert float(tape.gradient(after, sgd.learning_rate, through_updates=True)) == pytest.approx(-4.0 * 5.0 * 0.8)
    # Without going through the step, the rate has no part in the loss, as on the stock tape.
    assert tape.gradient(after, sgd.learning_rate) is None
    np.testing.assert_allclose(tape.gradient(after, pair), [1.6, 3.2], rtol=1e-6)


OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "sgd": keras.optimizers.SGD,
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "nesterov": lambda rate: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
    "adam": keras.optimizers.Adam,
    "rmsprop": keras.optimizers.RMSprop,
    "centered rmsprop": lambda rate: keras.optimizers.RMSprop(rate, momentum=0.5, centered=True),
}


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_2_2_through_every_optimizer(name, steps):
    make = OPTIMIZERS[name]
    optimizer = make(0.1)
    tape, after, (a, b) = descend(optimizer, steps)
    by_rate, by_a, by_b = tape.gradient(after, [optimizer.learning_rate, a, b], through_updates=True)
    expected = [
        difference(lambda rate: float(descend(make(rate), steps)[1]), 0.1),
        difference(lambda value: float(descend(make(0.1), steps, (value, 2.0))[1]), 1.0),
        difference(lambda value: float(descend(make(0.1), steps, (1.0, value))[1]), 2.0),
    ]
    np.testing.assert_allclose([by_rate, by_a, by_b], expected, rtol=1e-6, atol=1e-8)


def test_2_3_a_variable_that_changes_on_the_tape():
    x = tf.Variable(0.0)
    tape = rt.Tape(persistent=True)
    squares = []
    with tape:
        for _ in range(3):
            squares.append(tf.square(x))
            x.assign_add(1.0)
    assert float(tape.gradient(squares[-1], x, through_updates=True)) == 4.0
    assert [float(tape.gradient(square, tape.at(x, k))) for k, square in enumerate(squares)] == [0.0, 2.0, 4.0]
    assert [float(version.value) for version in tape.versions(x)] == [0.0, 1.0, 2.0, 3.0]

    tape.reset()
    with pytest.raises(EmptyTapeError, match="reset"):
        tape.gradient(squares[-1], x)
    with tape:
        again = 5.0 * x
    assert float(tape.gradient(again, x)) == 5.0
