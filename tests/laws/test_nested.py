"""Higher orders by tapes within tapes and inside functions are those of one tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from laws.examples import FUNCTIONS, X, Y, close, every_function, product, record, tensors


def nested(make: Callable, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    with make(persistent=True) as third:
        third.watch([x, y])
        with make(persistent=True) as second:
            second.watch([x, y])
            with make() as first:
                first.watch([x, y])
                z = product(x, y)
            by_x = first.gradient(z, x)
        by_xy = second.jacobian(by_x, y)
        scalar = tf.reduce_sum(by_xy**2)
    return [by_x, by_xy, *third.gradient(scalar, [x, y])]


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "function"])
def test_nested_tapes_give_the_stock_numbers(wrap: Callable):
    wanted = nested(tf.GradientTape, X, Y)
    found = wrap(lambda x, y: nested(rt.Tape, x, y))(X, Y)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


@pytest.mark.parametrize("outer", [tf.GradientTape, rt.Tape])
@pytest.mark.parametrize("inner", [tf.GradientTape, rt.Tape])
def test_either_tape_inside_either(outer: Callable, inner: Callable):
    with outer() as second:
        second.watch(X)
        with inner() as first:
            first.watch(X)
            z = product(X, Y)
        gradient = first.gradient(z, X)
    hessian = second.jacobian(gradient, X)
    tape, again = record(product, X, Y)
    close(hessian, tape.hessian(again, X))


@every_function
def test_everything_inside_a_function_is_as_in_eager_code(name: str):
    def ask(x: tf.Tensor, y: tf.Tensor) -> dict[str, Any]:
        with rt.Tape() as tape:
            z = FUNCTIONS[name](x, y)
            rows = tensors(x, y)
        return {
            "gradient": tape.gradient(z, [x, y]),
            "hvp": tape.hvp(z, [x, y], [y, x]),
            "hessian": tape.hessian(z, [x, y]),
            "whole": tape.hessian(z, [x, y], whole=True),
            "jvp": tape.jvp(rows, [x, y], [y, x]),
            "vjp": tape.vjp(rows, x, rows),
            "jacobian": tape.jacobian(rows, x),
        }

    for one, other in zip(tf.nest.flatten(tf.function(ask)(X, Y)), tf.nest.flatten(ask(X, Y)), strict=True):
        close(one, other)


def test_per_example_inside_a_function():
    @tf.function
    def ask(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with rt.Tape() as tape:
            losses = tf.reduce_sum(tensors(x, y) ** 2, 1)
        return tape.per_example(losses, x)

    with rt.Tape() as tape:
        losses = tf.reduce_sum(tensors(X, Y) ** 2, 1)
    close(ask(X, Y), tape.per_example(losses, X))
