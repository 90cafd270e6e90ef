"""Updates inside `tf.function`: plain, nested, compiled, in loops and in branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors
from rules.updates.kinds import UPDATES, Update, check_update
from rules.updates.tools import WHOLE


def _nested(f: Callable) -> Callable:
    inner = tf.function(f)
    return tf.function(lambda v, x: inner(v, x))


def _in_loop(f: Callable) -> Callable:
    def step(v: Any, x: Any, i: Any) -> Any:
        f(v, x)
        return (i + 1,)

    return tf.function(lambda v, x: tf.while_loop(lambda i: i < 2, lambda i: step(v, x, i), [0]), autograph=False)


def _in_branch(f: Callable) -> Callable:
    def branch(v: Any, x: Any, factor: float) -> tf.Tensor:
        f(v, factor * x)
        return tf.constant(0)

    return tf.function(
        lambda v, x: tf.cond(tf.reduce_sum(x) > -50.0, lambda: branch(v, x, 1.0), lambda: branch(v, x, 2.0)),
        autograph=False,
    )


def _with_autograph(v: tf.Variable, x: tf.Tensor) -> None:
    total = tf.reduce_sum(x)
    for _ in tf.range(3):
        if total > 0.0:
            v.assign_add(x * v)
        else:
            v.assign(v * x)
        total = total - 2.0


def _without_result(f: Callable) -> Callable:
    def call(v: Any, x: Any) -> None:
        f(v, x)

    return call


WRAPPERS: dict[str, Callable[[Callable], Callable]] = {
    "plain": lambda f: tf.function(_without_result(f)),
    "nested": lambda f: _nested(_without_result(f)),
    "compiled": lambda f: tf.function(_without_result(f), jit_compile=True),
    "loop": _in_loop,
    "branch": _in_branch,
}
# The bodies of these are what real code assigns in functions; the rest stands for all scatter kernels.
IN_FUNCTIONS = ["assign_of_itself", "assign_add", "scatter_add", "slice_of_itself", "two_after_another"]


@pytest.mark.parametrize("name", IN_FUNCTIONS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_update_inside_a_function(wrapper: str, name: str):
    wrapped = WRAPPERS[wrapper](UPDATES[name].apply)
    update = Update(wrapped, UPDATES[name].operand)
    check_update(update, wrapped, "needed")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in UPDATES if name not in IN_FUNCTIONS])
@pytest.mark.parametrize("wrapper", ["plain", "nested", "loop", "branch"])
def test_every_update_inside_a_function(wrapper: str, name: str):
    wrapped = WRAPPERS[wrapper](UPDATES[name].apply)
    update = Update(wrapped, UPDATES[name].operand)
    check_update(update, wrapped, "leaves")


def test_update_inside_a_function_with_keep_leaves():
    wrapped = tf.function(_without_result(UPDATES["assign_of_itself"].apply))
    check_update(Update(wrapped, WHOLE), wrapped, "leaves")


def test_python_flow_inside_a_function():
    wrapped = tf.function(_with_autograph)
    check_update(Update(wrapped, WHOLE), wrapped, "needed")


@pytest.mark.parametrize("nested", [False, True])
def test_custom_gradient_inside_a_function_that_assigns(nested: bool):
    @tf.custom_gradient
    def steep(x: tf.Tensor) -> Any:
        return tf.sin(x), lambda upstream: upstream * 5.0

    inner = tf.function(steep) if nested else steep
    variable, x = tf.Variable([1.0, 2.0]), tf.constant([0.3, 0.4])
    assign = tf.function(lambda x: variable.assign_add(inner(x) * variable))
    with rt.Tape() as tape:
        assign(x)
        y = tf.reduce_sum(variable * variable)
    new = np.array([1.0, 2.0]) * (1 + np.sin([0.3, 0.4]))
    by_x, by_start = tape.gradient(y, [x, tape.at(variable, 0)], through_updates=True)
    np.testing.assert_allclose(by_x, 2 * new * np.array([1.0, 2.0]) * 5.0, rtol=1e-6)
    np.testing.assert_allclose(by_start, 2 * new * (1 + np.sin([0.3, 0.4])), rtol=1e-6)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_silu_inside_a_function_that_assigns(wrapper: str):
    # Keras and TensorFlow write this activation with a custom gradient that looks at tensors of the function.
    wrapped = WRAPPERS[wrapper](lambda v, x: v.assign(tf.nn.silu(v * x)))
    check_update(Update(wrapped, WHOLE), wrapped, "needed")


def test_what_a_function_returns_and_what_it_assigns():
    variable, x = tf.Variable(3.0), tf.constant(2.0)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        before = variable * x
        variable.assign(variable * before)  # v² x
        return before + variable  # v x + v² x

    with rt.Tape() as tape:
        y = step(x) * variable
    # y = (v x + v² x) v² x = v³ x² + v⁴ x²
    assert float(tape.gradient(y, tape.at(variable, 0))) == 3 * 9 * 4 + 4 * 27 * 4
    assert float(tape.gradient(y, x, through_updates=True)) == 2 * (27 + 81) * 2


def test_what_a_function_returns_alone():
    # The variable is not looked at after the call, so the only path leads through what the function read back.
    variable, x = tf.Variable(3.0), tf.constant(2.0)
    step = tf.function(lambda x: variable.assign(variable * x) * variable)
    with rt.Tape() as tape:
        y = step(x)
    # y = v² x²
    found = tape.gradient(y, [tape.at(variable, 0), x, variable], through_updates=True)
    assert [float(grad) for grad in found] == [24.0, 36.0, 24.0]


def test_function_called_twice():
    variable = tf.Variable(3.0)
    double = tf.function(lambda x: variable.assign(variable * x))
    first, second = tf.constant(2.0), tf.constant(5.0)
    with rt.Tape() as tape:
        double(first)
        double(second)
        y = variable * 1.0
    assert [float(version.value) for version in tape.versions(variable)] == [3.0, 6.0, 30.0]
    sources = [first, second, tape.at(variable, 0), tape.at(variable, 1)]
    assert [float(g) for g in tape.gradient(y, sources, through_updates=True)] == [15.0, 6.0, 10.0, 5.0]


def test_function_with_random_draws_is_refused_only_if_needed():
    variable, x = tf.Variable(3.0), tf.constant(2.0)
    jitter = tf.function(lambda x: variable.assign(variable * x + tf.random.uniform([])))
    with rt.Tape() as tape:
        jitter(x)
        y = variable * x
    assert float(tape.gradient(y, x)) == float(variable)
    with pytest.raises(errors.OpaqueUpdateError, match="random draws"):
        tape.gradient(y, x, through_updates=True)
