"""Derivatives of higher order against closed forms; what is zero and what is none."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import retrotape as rt
from laws.examples import chain, close, few, product, record, vectors

# ------------------------------------------------------------------ closed forms of higher order


def derivatives(tape: rt.Tape, target: tf.Tensor, x: tf.Tensor, order: int) -> list[float]:
    found = []
    for _ in range(order):
        target = tape.gradient(target, x)
        found.append(float(target))
    return found


CLOSED: dict[str, tuple[Callable, Callable[[float], list[float]]]] = {
    "power": (lambda x: x**5, lambda x: [5 * x**4, 20 * x**3, 60 * x**2, 120 * x]),
    "sine": (tf.sin, lambda x: [math.cos(x), -math.sin(x), -math.cos(x), math.sin(x)]),
    "exponential": (
        lambda x: tf.exp(2.0 * x),
        lambda x: [factor * math.exp(2 * x) for factor in (2, 4, 8, 16)],
    ),
    "logarithm": (tf.math.log, lambda x: [1 / x, -1 / x**2, 2 / x**3, -6 / x**4]),
    "tangent": (
        tf.tanh,
        lambda x: [
            1 - math.tanh(x) ** 2,
            -2 * math.tanh(x) * (1 - math.tanh(x) ** 2),
            (1 - math.tanh(x) ** 2) * (6 * math.tanh(x) ** 2 - 2),
            (1 - math.tanh(x) ** 2) * math.tanh(x) * (16 - 24 * math.tanh(x) ** 2),
        ],
    ),
    "fraction": (lambda x: 1.0 / x, lambda x: [-1 / x**2, 2 / x**3, -6 / x**4, 24 / x**5]),
}


@pytest.mark.parametrize("name", CLOSED)
@few
@given(at=st.floats(0.3, 1.8).map(lambda number: round(number, 3)))
def test_four_orders_of_a_closed_form(name: str, at: float):
    f, wanted = CLOSED[name]
    x = tf.constant(at, tf.float64)
    tape, y = record(f, x)
    close(derivatives(tape, y, x, 4), wanted(at))


@pytest.mark.parametrize("name", CLOSED)
def test_four_orders_inside_a_function(name: str):
    f, wanted = CLOSED[name]

    @tf.function
    def ask(x: tf.Tensor) -> list[tf.Tensor]:
        with rt.Tape() as tape:
            target = f(x)
        found = []
        for _ in range(4):
            target = tape.gradient(target, x)
            found.append(target)
        return found

    close(ask(tf.constant(0.7, tf.float64)), wanted(0.7))


@pytest.mark.parametrize("name", CLOSED)
def test_four_orders_of_a_function_that_was_called(name: str):
    f, wanted = CLOSED[name]
    x = tf.constant(0.7, tf.float64)
    tape, y = record(tf.function(f), x)
    close(derivatives(tape, y, x, 4), wanted(0.7))


def test_jvp_of_a_jvp():
    # The stock ForwardAccumulator, nested, loses a term here.
    x, one = tf.constant(0.7, tf.float64), tf.constant(1.0, tf.float64)
    tape, y = record(lambda x: x**3, x)
    first = tape.jvp(y, x, one)
    close(first, 3 * 0.7**2)
    close(tape.jvp(first, x, one), 4.2)
    close(tape.jvp(tape.gradient(y, x), x, one), 4.2)
    close(tape.gradient(tape.jvp(y, x, one), x), 4.2)
    close(tape.jvp(tape.jvp(first, x, one), x, one), 6.0)


@few
@given(x=vectors, y=vectors, u=vectors, v=vectors)
def test_jvp_of_a_jvp_is_the_hessian_between_vectors(x: tf.Tensor, y: tf.Tensor, u: tf.Tensor, v: tf.Tensor):
    tape, z = record(product, x, y)
    hessian = tape.hessian(z, x).numpy()
    close(tape.jvp(tape.jvp(z, x, u), x, v), u.numpy() @ hessian @ v.numpy())


@few
@given(x=vectors, y=vectors, u=vectors, v=vectors)
def test_third_derivative_is_symmetric(x: tf.Tensor, y: tf.Tensor, u: tf.Tensor, v: tf.Tensor):
    tape, z = record(chain, x, y)
    third = tape.gradient(tape.hvp(z, x, u), x, output_gradients=v)
    other = tape.gradient(tape.hvp(z, x, v), x, output_gradients=u)
    close(third, other)


@pytest.mark.parametrize("ask", ["gradient", "hvp", "jvp"])
def test_an_answer_used_in_a_block_entered_again(ask: str):
    x, ones = tf.constant([0.3, -0.8], tf.float64), tf.ones([2], tf.float64)
    with rt.Tape() as tape:
        powers = x**4
        y = tf.reduce_sum(powers)
    answer = {
        "gradient": lambda: tape.gradient(y, x),
        "hvp": lambda: tape.hvp(y, x, ones),
        "jvp": lambda: tape.jvp(powers, x, ones),
    }[ask]
    value, slope = {"hvp": (12 * x**2, 24 * x)}.get(ask, (4 * x**3, 12 * x**2))
    outside = answer()
    close(outside, value)
    close(tape.gradient(outside, x), slope)
    with tape:
        constant, inside = tf.reduce_sum(outside * x), tf.reduce_sum(answer() * x)
    close(tape.gradient(constant, x), value)  # asked outside of the block, as on the stock tape
    close(tape.gradient(inside, x), slope * x + value)


def test_hessian_of_a_gradient_norm():
    x = tf.constant([0.3, -0.8, 1.1], tf.float64)
    with rt.Tape() as tape:
        y = tf.reduce_sum(x**4)
        norm = tf.reduce_sum(tape.gradient(y, x) ** 2)  # 16 x⁶
    close(tape.gradient(norm, x), 96 * x.numpy() ** 5)
    close(tape.hessian(norm, x), np.diag(480 * x.numpy() ** 4))


# ------------------------------------------------------------------ none and zero


def test_constant_derivative_is_zero_and_no_path_is_none():
    x, other = tf.constant(2.0), tf.constant(3.0)
    tape, y = record(lambda x: 5.0 * x + other * 0.0, x)
    first = tape.gradient(y, x)
    second = tape.gradient(first, x)
    assert float(first) == 5.0
    assert second is not None
    assert float(second) == 0.0
    assert float(tape.gradient(second, x)) == 0.0
    assert tape.gradient(y, tf.constant(2.0)) is None
    assert tape.gradient(first, tf.constant(2.0)) is None
    assert float(tape.hvp(y, x, tf.constant(1.0))) == 0.0
    assert float(tape.hessian(y, x)) == 0.0
    assert tape.hvp(y, tf.constant(2.0), tf.constant(1.0)) is None
    assert tape.jvp(y, tf.constant(2.0), tf.constant(1.0)) is None


def test_constant_derivative_inside_a_function():
    @tf.function
    def ask(x: tf.Tensor, other: tf.Tensor) -> tuple:
        with rt.Tape() as tape:
            y = 5.0 * x
        first = tape.gradient(y, x)
        second = tape.gradient(first, x)
        assert tape.gradient(y, other) is None
        assert tape.gradient(first, other) is None
        return first, second

    assert [float(value) for value in ask(tf.constant(2.0), tf.constant(3.0))] == [5.0, 0.0]


def test_blocks_without_path_are_zero():
    x, y, z = tf.constant([1.0, 2.0]), tf.constant(3.0), tf.constant([[4.0]])
    with rt.Tape() as tape:
        target = tf.reduce_sum(x**2) + y**3
    blocks = tape.hessian(target, [x, y, z])
    close(blocks[0][0], 2 * np.eye(2))
    close(blocks[0][1], np.zeros(2))
    close(blocks[1][1], np.float64(18.0))
    close(blocks[2][0], np.zeros([1, 1, 2]))
    products = tape.hvp(target, [x, y, z], [x, y, z])
    close(products[0], [2.0, 4.0])
    assert products[2] is None
    assert tape.hessian(target, [x, y, z], whole=True).shape == (4, 4)
