"""What a computation may run: ops that always do the same, on values that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.warm import FIRST, reasons, refused
from lower.lowering import observed
from retrotape.lower._observed import NotCompilableError

X = tf.constant([1.0, -2.0, 3.0])


def custom_step(backward):
    """Return a step whose custom gradient is given its input and the cotangent."""

    @tf.custom_gradient
    def custom(a):
        return a * 1.0, lambda dy: backward(a, dy)

    def step(x):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(custom(x) * x)
        return tape, [tape.gradient(loss, x)]

    return step


EFFECT = "which has an effect, or another result each time"
STATEFUL: dict[str, tuple[Any, str]] = {
    "tf.print": (
        lambda a, dy: (tf.print("", end=""), dy)[1],
        "the backward function '<lambda>' uses the attribute 'print'",
    ),
    "random numbers": (lambda a, dy: dy * tf.sign(tf.raw_ops.RandomUniform(shape=[3], dtype=tf.float32) + 1.0), EFFECT),
    "assertions": (lambda a, dy: (tf.raw_ops.Assert(condition=True, data=[a]), dy)[1], EFFECT),
    "numpy_function": (
        lambda a, dy: tf.numpy_function(lambda b: b * 2.0, [dy], tf.float32),
        "the backward function '<lambda>' uses the attribute 'numpy_function'",
    ),
}


@pytest.mark.parametrize("name", list(STATEFUL))
def test_ops_with_an_effect_are_not_compiled(name: str):
    backward, text = STATEFUL[name]
    assert text in refused(custom_step(backward), X)


def test_code_in_a_py_function_runs_each_time():
    seen = []

    def counted(b):
        seen.append(1)
        return b * float(len(seen))

    step = custom_step(lambda a, dy: tf.py_function(counted, [dy], tf.float32))
    for number in range(1, 6):
        tape, (grad,) = step(X)
        np.testing.assert_allclose(grad, X * number + X)
    assert "uses the attribute 'py_function'" in tape.why_not_compiled()


def test_a_function_call_in_a_backward_function_is_not_compiled():
    function = tf.function(lambda a: a * 2.0)
    found = refused(custom_step(lambda a, dy: function(dy)), X)
    assert "function" in found


def test_a_query_through_a_function_gives_the_same():
    function = tf.function(lambda a: tf.sin(a) * a)

    def step(x):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(function(x * 2.0))
        return tape, [tape.gradient(loss, x)]

    reasons(step, *[X * float(number) for number in range(5)])


# ------------------------------------------------------------------ host reads

READS: dict[str, Any] = {
    "numpy": lambda a: a.numpy()[0] > 0.0,
    "float": lambda a: float(tf.gather(a, 0)) > 0.0,
    "bool": lambda a: bool(a[0] > 0.0),
    "an if": lambda a: True if a[0] > 0.0 else False,  # noqa: SIM210 - the branch is what reads it
    "format": lambda a: f"{a}".startswith("[1"),
}


@pytest.mark.parametrize("name", list(READS))
def test_a_value_that_python_reads_is_never_out_of_date(name: str):
    """Either it is compared each time, or the query is not compiled."""
    read = READS[name]
    step = custom_step(lambda a, dy: dy * 2.0 if read(a) else tf.sin(dy))
    reasons(step, X, X, X, -X, -X, -X, X, -X, X + 1.0)


def test_a_value_of_the_tape_that_python_reads_is_compared():
    step = custom_step(lambda a, dy: dy * 2.0 if a.numpy()[0] > 0.0 else tf.sin(dy))
    assert reasons(step, X, X, X, -X, -X, -X, X, -X) == [FIRST, FIRST, None, FIRST, FIRST, None, None, None]


def test_what_is_computed_from_it_and_read_is_not_compiled():
    step = custom_step(lambda a, dy: dy * 2.0 if float(tf.reduce_sum(a * dy)) > 0.0 else tf.sin(dy))
    assert "a gradient function reads in Python what another op computed" in refused(step, X)


def test_a_seed_that_python_reads_is_not_compiled():
    @tf.custom_gradient
    def custom(a):
        return a * 1.0, lambda dy: dy * 2.0 if dy.numpy()[0] > 0.0 else tf.sin(dy)

    def step(seed):
        with rt.Tape() as tape:
            y = custom(X)
        return tape, [tape.gradient(y, X, output_gradients=seed)]

    found = reasons(step, X, X, X, -X, X)
    assert found[2:] == ["a backward function reads in Python what it is given"] * 3


def test_a_shape_that_python_reads_may_decide():
    step = custom_step(lambda a, dy: dy * float(dy.shape[0]))
    assert reasons(step, X, X, X, X[:2], X[:2], X[:2], X)[2:] == [None, FIRST, FIRST, None, None]


# ------------------------------------------------------------------ rules of users


def test_a_registered_gradient_of_user_code_runs_each_time():
    calls = []
    name = "RetrotapeTestCounted"

    @tf.RegisterGradient(name)
    def _rule(op, dy):
        calls.append(1)
        return dy * 2.0

    @tf.function
    def function(a):
        with tf.compat.v1.get_default_graph().gradient_override_map({"Sin": name}):
            return tf.sin(a)

    def step(x):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(function(x))
        return tape, [tape.gradient(loss, x)]

    reasons(step, X, X, X)


def test_the_gradient_function_of_an_op_that_user_code_registered_is_not_compiled(monkeypatch):
    from retrotape.lower import _keys
    from retrotape.rules import Rule

    def rule(op, dy):
        return dy * 2.0

    lookup = _keys.lookup
    monkeypatch.setattr(_keys, "lookup", lambda op: Rule(rule) if op == "Sin" else lookup(op))

    def step(x):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.sin(x))
        return tape, [tape.gradient(loss, x)]

    assert refused(step, X) == "the gradient function of Sin is not TensorFlow's own"


# ------------------------------------------------------------------ as data


def test_equal_computations_are_equal_data():
    def function(a):
        return [tf.sin(a) * 2.0]

    assert observed(function, X) == observed(function, X * 3.0)
    assert observed(function, X) != observed(lambda a: [tf.sin(a) * 3.0], X)
    assert observed(function, X) != observed(function, X[:2])


def test_a_resource_is_not_compiled():
    with pytest.raises(NotCompilableError, match=r"which makes a resource|has an effect"):
        observed(lambda a: [tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1).size(), a], X)


def test_a_variable_is_not_compiled():
    variable = tf.Variable(2.0)
    with pytest.raises(NotCompilableError, match="a backward function reads or assigns a variable"):
        observed(lambda a: [a * variable], X)


def test_strings_are_compared_by_their_contents():
    @tf.custom_gradient
    def custom(a, name):
        def grad(dy):
            return (dy * 2.0 if name.numpy() == b"a" else dy * 3.0), None

        return a * 1.0, grad

    def step(text):
        name = tf.constant(text)
        with rt.Tape() as tape:
            loss = tf.reduce_sum(custom(X, name))
        return tape, [tape.gradient(loss, X)]

    reasons(step, "a", "a", "a", "b", "b", "b", "a", "b")
    np.testing.assert_array_equal(step("b")[1][0], [3.0, 3.0, 3.0])
