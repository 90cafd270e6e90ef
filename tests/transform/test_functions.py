"""What ran inside functions, custom gradients and derivatives is in the file as ops, and differentiates as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.trips import assert_same, check, differences, trip

VALUES = np.array([0.3, -1.2, 2.0])


@pytest.fixture
def x() -> tf.Tensor:
    return tf.constant(VALUES, tf.float32)


@tf.custom_gradient
def wrong(x: tf.Tensor) -> Any:
    """Return a square whose derivative is not the true one, so that nobody finds it by way of the ops."""
    root = tf.sin(x)
    return root * root, lambda upstream: upstream * 7.0 * root * x


@tf.custom_gradient
def twice(x: tf.Tensor) -> Any:
    """Return a double with a custom gradient in the backward function."""
    return 2.0 * x, lambda upstream: wrong(upstream * x) + tf.nn.silu(upstream)


def _while(x):
    for _ in tf.range(3):
        x = tf.sin(x) * 1.5
    return x


def _until(x):
    while tf.reduce_sum(x**2) > 0.5:
        x = 0.7 * tf.sin(x)
    return x


def _if(x):
    if tf.reduce_sum(x) > 0.0:
        return x**3
    return x**2


def _case(x):
    return tf.switch_case(tf.argmax(x, output_type=tf.int32), [lambda: x**3, lambda: tf.sin(x), lambda: x * tf.exp(x)])


_inner = tf.function(lambda x: tf.nn.silu(x) * 2.0)


def _array(x):
    found = tf.TensorArray(tf.float32, 3)
    for index in tf.range(3):
        found = found.write(index, x[index] ** 2 * x[0])
    return found.stack() * x


def _custom_in_a_loop(x):
    for _ in tf.range(3):
        x = wrong(x)
    return x


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "while": _while,
    "until": _until,
    "if": _if,
    "case": _case,
    "nested": lambda x: _inner(tf.sin(x)) + _inner(x),
    "silu": lambda x: tf.nn.silu(x) * x,
    "array": _array,
    "scan": lambda x: tf.scan(lambda left, right: left * right + right, x),
    "custom": lambda x: wrong(2.0 * x) ** 2,
    "custom in a loop": _custom_in_a_loop,
    "custom in a custom": twice,
    "handed back": lambda x: (tf.sin(x), x)[1],
    "recomputed": lambda x: tf.recompute_grad(lambda y: tf.sin(y) * y)(x),
}
EAGER_ONLY = ("recomputed",)


TRACED = [name for name in FUNCTIONS if name not in EAGER_ONLY]


@pytest.mark.parametrize("name", TRACED)
def test_of_a_function(name, x, tmp_path):
    """The derivatives are those of the same Python code without a function."""
    function = tf.function(FUNCTIONS[name])
    with rt.Tape() as tape:
        target = tf.reduce_sum(function(x) * x)
    with rt.Tape() as eager:
        wanted = tf.reduce_sum(FUNCTIONS[name](x) * x)
    loaded = trip(tape, {"x": x, "target": target}, tmp_path).loaded
    assert not any("function" in eqn.op.lower() or "Call" in eqn.op for eqn in loaded.program.eqns)
    np.testing.assert_allclose(loaded["target"], target, rtol=1e-6)
    got = loaded["target"]
    for _ in range(3):
        got, wanted = loaded.gradient(got, "x"), eager.gradient(wanted, x)
        assert_same(got, wanted, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACED)
def test_of_a_function_against_the_live_tape(name, x, tmp_path):
    function = tf.function(FUNCTIONS[name])
    with rt.Tape() as tape:
        target = tf.reduce_sum(function(x) * x)
    check(tape, target, {"x": x}, tmp_path, order=3)


@pytest.mark.parametrize("name", ["silu", "custom", "custom in a custom", "scan", "recomputed"])
def test_of_eager_code(name, x, tmp_path):
    with rt.Tape() as tape:
        target = tf.reduce_sum(FUNCTIONS[name](x) * x)
    check(tape, target, {"x": x}, tmp_path, order=3)


def test_custom_gradient_with_variables(x, tmp_path):
    scale = tf.Variable(2.0, name="scale")

    @tf.custom_gradient
    def linear(x):
        def back(upstream, variables=None):
            return 3.0 * upstream * scale * x, [tf.reduce_sum(upstream * x * x)] * len(variables)

        return x * scale, back

    with rt.Tape() as tape:
        target = tf.reduce_sum(linear(x) ** 2)
    scale.assign(100.0)  # what counts is what it was
    made = check(tape, target, {"x": x, "scale": scale}, tmp_path, order=3)
    np.testing.assert_allclose(made.loaded.gradient("target", "x"), 2 * 2.0 * VALUES * 3 * 2.0 * VALUES, rtol=1e-6)


def test_custom_gradients_within_custom_gradients_have_an_end(x, tmp_path):
    @tf.custom_gradient
    def endless(x):
        return x * 2.0, lambda upstream: endless(upstream) * x

    with rt.Tape() as tape:
        target = tf.reduce_sum(endless(x) * x)
    made = trip(tape, {"x": x, "target": target}, tmp_path)
    first, second = tape.gradient(target, x), made.loaded.gradient("target", "x")
    for _ in range(3):
        assert_same(second, first)
        first, second = tape.gradient(first, x), made.loaded.gradient(second, "x")
    with pytest.raises(rt.errors.TooDeepError, match="'endless' was saved with 3 derivatives"):
        made.loaded.gradient(second, "x")


# ------------------------------------------------------------------ variables that a function assigns


def test_variable_assigned_in_a_function(x, tmp_path):
    held = tf.Variable([1.0, 2.0, 3.0], name="held")

    @tf.function
    def step(x):
        held.assign(held * x)
        return tf.reduce_sum(held**2)

    with rt.Tape() as tape:
        target = step(x) + tf.reduce_sum(held**3)
    made = check(tape, target, {"x": x, "held": held}, tmp_path, order=1)
    ours = made.loaded.gradient("target", ["x", "held"], through_updates=True)
    for got, wanted in zip(ours, tape.gradient(target, [x, held], through_updates=True), strict=True):
        assert_same(got, wanted)
    by_hand = 2 * VALUES * np.array([1, 2, 3]) ** 2 + 3 * VALUES**2 * np.array([1, 2, 3]) ** 3
    np.testing.assert_allclose(ours[0], by_hand, rtol=1e-5)
    assert [version.numpy().tolist() for version in made.loaded.versions("held")] == [
        version.numpy().tolist() for version in tape.versions(held)
    ]


@pytest.mark.parametrize("branch", [1.0, -1.0])
def test_variable_assigned_in_a_branch(branch, x, tmp_path):
    held = tf.Variable(2.0, name="held")

    @tf.function
    def step(x, sign):
        if sign > 0.0:
            held.assign(held * x[0])
        return held * x

    with rt.Tape() as tape:
        target = tf.reduce_sum(step(x, tf.constant(branch))) * held
    made = check(tape, target, {"x": x, "held": held}, tmp_path, order=1)
    got = made.loaded.gradient("target", "x", through_updates=True)
    assert_same(got, tape.gradient(target, x, through_updates=True))


def test_variable_and_what_was_read_from_it_are_two_sources(tmp_path):
    held = tf.Variable([1.0, 2.0], name="held")
    function = tf.function(lambda read: read**2 * held)
    with rt.Tape() as tape:
        read = held.read_value()
        target = tf.reduce_sum(function(read))
    check(tape, target, {"read": read, "held": held}, tmp_path, order=2)


# ------------------------------------------------------------------ derivatives taken inside the block

held_outside = tf.Variable([1.0, 0.5, -0.3], dtype=tf.float64)
CALLS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda x: tf.sin(x) * x**2 * held_outside,
    "loop": lambda x: _while64(x),
    "silu": lambda x: tf.nn.silu(x * held_outside) * x,
}


def _while64(x):
    for _ in tf.range(3):
        x = tf.sin(x) * held_outside
    return x


def penalty(call: Any, x: tf.Tensor, way: str, tape: Any) -> tf.Tensor:
    """Return the norm of a gradient, which is taken by this tape, by another one, or by a stock one."""
    if way == "own":
        grads = tape.gradient(tf.reduce_sum(call(x)), [x, held_outside])
    else:
        with (tf.GradientTape if way == "stock" else rt.Tape)() as inner:
            inner.watch(x)
            result = tf.reduce_sum(call(x))
        grads = inner.gradient(result, [x, held_outside])
    return tf.reduce_sum(grads[0] ** 2) + tf.reduce_sum(grads[1] ** 2)


def _ways() -> list[Any]:
    """Return all that is to be tried; not all of it is for every day."""
    every_day = [("plain", "own", True), ("plain", "stock", True), ("loop", "another", True), ("silu", "stock", False)]
    ways = [(name, way, traced) for name in CALLS for way in ("own", "another", "stock") for traced in (False, True)]
    return [pytest.param(*way, marks=() if way in every_day else pytest.mark.slow) for way in ways]


@pytest.mark.parametrize(("name", "way", "traced"), _ways())
def test_gradient_inside_the_block(name, way, traced, tmp_path):
    """The gradient of a function is on the tape by its values alone; in a file it has to be computed."""
    call = tf.function(CALLS[name]) if traced else CALLS[name]
    x = tf.constant(VALUES)
    with rt.Tape() as tape:
        target = penalty(call, x, way, tape)
    made = trip(tape, {"x": x, "held": held_outside, "target": target}, tmp_path)
    np.testing.assert_allclose(made.loaded["target"], target, rtol=1e-12)

    def moved(values: np.ndarray) -> float:
        return float(penalty(CALLS[name], tf.constant(values), "another", None))

    by_x = made.loaded.gradient("target", "x")
    np.testing.assert_allclose(by_x, differences(moved, VALUES), rtol=1e-7)
    other = np.array([1.0, 0.2, -0.7])
    again = made.loaded.replay({"x": other})
    np.testing.assert_allclose(again["target"], moved(other), rtol=1e-12)
    np.testing.assert_allclose(again.gradient("target", "x"), differences(moved, other), rtol=1e-7)
    with rt.Tape() as plain:  # no function: what the numbers of all ways have to be
        norm = penalty(CALLS[name], x, "own", plain)
    wanted = plain.gradient(plain.gradient(norm, x), x)
    np.testing.assert_allclose(made.loaded.gradient(by_x, "x"), wanted, rtol=1e-9)
