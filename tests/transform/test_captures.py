"""What a custom gradient inside a function call captures stays connected, wherever the tape comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

AT = np.array([0.4, -0.7])
ALONG = tf.constant([1.0, 2.0], tf.float64)


@tf.custom_gradient
def cube(a: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    return a * a * a, lambda dy: dy * 3.0 * a * a


def called(a: tf.Tensor) -> tf.Tensor:
    """A call that only computes."""
    return CALLED(a)


CALLED = tf.function(lambda a: cube(a) + tf.nn.silu(a), input_signature=[tf.TensorSpec([2], tf.float64)])
HELD = tf.Variable([0.5, 1.5], dtype=tf.float64)
ASSIGNING = tf.function(lambda a: HELD.assign(HELD * cube(a)), input_signature=[tf.TensorSpec([2], tf.float64)])


def assigning(a: tf.Tensor) -> tf.Tensor:
    """A call that assigns to a variable."""
    HELD.assign([0.5, 1.5])
    return ASSIGNING(a)


def nested(a: tf.Tensor) -> tf.Tensor:
    """A call inside a call."""
    return NESTED(a)


NESTED = tf.function(lambda a: CALLED(tf.sin(a)) * a, input_signature=[tf.TensorSpec([2], tf.float64)])


def twice_the_same(a: tf.Tensor) -> tf.Tensor:
    """A call that gets one tensor as two arguments."""
    return PAIR(a, a)


PAIR = tf.function(lambda a, b: cube(a) * tf.nn.silu(b), input_signature=[tf.TensorSpec([2], tf.float64)] * 2)


def run(function: Callable, at: np.ndarray, keep: str = "needed") -> tuple[rt.Tape, tf.Tensor, tf.Tensor]:
    x = tf.constant(at)
    with rt.Tape(keep=keep) as tape:
        y = tf.reduce_sum(function(tf.sin(x) * 1.5) * 1.0)  # the argument is not kept, but recomputed
    return tape, y, x


def differences(function: Callable, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first derivative, and how it changes along `ALONG`, by finite differences."""

    def value(point: np.ndarray) -> float:
        return float(tf.reduce_sum(function(tf.sin(tf.constant(point)) * 1.5)))

    def slope(point: np.ndarray) -> np.ndarray:
        steps = 1e-4 * np.eye(2)
        return np.array([(value(point + step) - value(point - step)) / 2e-4 for step in steps])

    gap = 1e-4 * ALONG.numpy()
    return slope(at), (slope(at + gap) - slope(at - gap)) / 2e-4


FUNCTIONS = [called, assigning, nested, twice_the_same]


@pytest.fixture(params=FUNCTIONS, ids=lambda function: function.__name__)
def function(request: pytest.FixtureRequest) -> Callable:
    return request.param


def check(tape: object, y: object, x: object, function: Callable, at: np.ndarray = AT) -> None:
    first, second = differences(function, at)
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(y, x, through_updates=True), first, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tape.hvp(y, x, ALONG, through_updates=True), second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keep", ["needed", "leaves", "all"])
def test_live(function: Callable, keep: str):
    check(*run(function, AT, keep), function)


@pytest.mark.parametrize("values", ["leaves", "needed", "all"])
def test_loaded_and_saved_again(tmp_path: Path, function: Callable, values: str):
    tape, y, x = run(function, AT)
    tape.save(tmp_path / "a.tape", x=x, y=y, values=values)
    loaded = rt.load(tmp_path / "a.tape")
    check(loaded, "y", "x", function)
    loaded.save(tmp_path / "b.tape", values=values)
    check(rt.load(tmp_path / "b.tape"), "y", "x", function)


def test_replayed(tmp_path: Path, function: Callable):
    """A capture that is not connected would keep its old value: even the first derivative would be wrong."""
    tape, y, x = run(function, AT)
    check(tape.replay([(x, AT + 0.3)]), y, x, function, AT + 0.3)
    tape.save(tmp_path / "a.tape", x=x, y=y)
    check(rt.load(tmp_path / "a.tape").replay({"x": AT + 0.3}), "y", "x", function, AT + 0.3)


def test_joined(function: Callable):
    x = tf.constant(AT)
    with rt.Tape() as before:
        a = tf.sin(x) * 1.5
    with rt.Tape() as after:
        y = tf.reduce_sum(function(a) * 1.0)
    check(rt.join(before, after), y, x, function)
    check(rt.join(before, after).replay([(x, AT + 0.3)]), y, x, function, AT + 0.3)


def test_isolated(tmp_path: Path):
    tape, y, x = run(nested, AT)
    tape.save(tmp_path / "a.tape", x=x, y=y)
    with rt.load(tmp_path / "a.tape", isolate=True) as isolated:
        check(isolated, "y", "x", nested)
