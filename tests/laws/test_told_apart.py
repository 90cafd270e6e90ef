"""Loops that get warm, and in which something changes that looks the same: results stay those of op by op.

Each loop runs the same lines in every step. From step `CHANGE` on, something differs that no op and no shape shows.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

STEPS, CHANGE = 9, 5
LOOPS = {}
scale = 1.0
variable = tf.Variable([1.0, 2.0])


def loop(step):
    LOOPS[step.__name__] = step
    return step


def with_backward(backward):
    """Return a function that doubles, with a backward function of its own."""

    @tf.custom_gradient
    def doubled(x):
        return x * 2.0, backward(x)

    return doubled


def slope(function, factor=3.0):
    with rt.Tape() as tape:
        y = function(variable * 1.0) * factor
    return tape.gradient(y, [variable])


# ------------------------------------------------------------------ output gradients


@loop
def a_seed_is_a_tensor_of_the_tape_and_then_another(late):
    x = tf.constant([1.0, 3.0])
    with rt.Tape() as tape:
        y = variable * x
    return tape.gradient([y], [variable], output_gradients=[tf.constant([7.0, 1.0]) if late else x])


@loop
def two_seeds_are_one_tensor_and_then_two(late):
    seed = tf.constant([2.0, 5.0])
    with rt.Tape() as tape:
        y = [variable * 2.0, variable * variable]
    return tape.gradient(y, [variable], output_gradients=[seed, tf.constant([1.0, 9.0]) if late else seed])


FIXED = tf.constant([3.0, 1.0])


@loop
def a_seed_is_what_a_backward_function_holds_and_then_another(late):
    squared = with_backward(lambda _: lambda dy: dy * FIXED)
    with rt.Tape() as tape:
        y = squared(variable * 1.0)
    return tape.gradient(y, [variable], output_gradients=tf.constant([7.0, 2.0]) if late else FIXED)


# ------------------------------------------------------------------ state of Python that backward functions read


def helper():
    """Have an attribute."""


@loop
def an_attribute_of_a_function(late):
    helper.scale = 2.0 if late else 1.0
    return slope(with_backward(lambda _: lambda dy: dy * helper.scale))


@loop
def a_bound_method(late):
    get = {"scale": 2.0 if late else 1.0}.get
    return slope(with_backward(lambda _: lambda dy: dy * get("scale")))


@loop
def a_global(late):
    global scale
    scale = 2.0 if late else 1.0
    return slope(with_backward(lambda _: lambda dy: dy * scale))


@loop
def a_global_by_name(late):
    global scale
    scale = 2.0 if late else 1.0
    return slope(with_backward(lambda _: lambda dy: dy * globals()["scale"]))


@loop
def a_wrapper_with_the_name_of_a_library(late):
    global scale
    scale = 2.0 if late else 1.0
    return slope(with_backward(lambda _: functools.wraps(tf.nn.relu)(lambda dy: dy * scale)))


@loop
def an_attribute_of_an_object(late):
    settings = SimpleNamespace(scale=2.0 if late else 1.0)
    return slope(with_backward(lambda _: lambda dy: dy * settings.scale))


@loop
def an_attribute_of_a_variable(late):
    variable.norm = 2.0 if late else 1.0
    try:
        return slope(with_backward(lambda _: lambda dy: dy * variable.norm))
    finally:
        del variable.norm


@loop
def a_setting_of_keras(late):
    keras.config.set_epsilon(2.0 if late else 1.0)
    try:
        return slope(with_backward(lambda _: lambda dy: dy * keras.config.epsilon()))
    finally:
        keras.config.set_epsilon(1e-7)


@loop
def a_value_that_numpy_reads(late):
    backward = with_backward(lambda _: lambda dy: dy * 10.0 if np.max(dy) > 4.0 else dy)
    return slope(backward, 5.0 if late else 3.0)


@loop
def a_value_that_a_py_function_reads(late):
    def backward(x):
        top = tf.reduce_max(x)
        return lambda dy: dy * tf.py_function(lambda z: 2.0 * z if z.numpy() > 3.0 else z, [top], tf.float32)

    factor = tf.constant([1.0, 7.0 if late else 1.0])
    with rt.Tape() as tape:
        y = with_backward(backward)(variable * factor)
    return tape.gradient(y, [variable])


@loop
def the_number_of_rows_that_a_backward_function_finds(late):
    def backward(_):
        return lambda dy: dy * tf.cast(tf.size(tf.where(dy > 2.5)), tf.float32)

    return slope(with_backward(backward), tf.constant([3.0, 3.0 if late else 1.0]))


# ------------------------------------------------------------------ variables


@loop
def two_variables_in_the_other_order(late):
    first, second = tf.Variable(2.0), tf.Variable(10.0)
    product = with_backward(lambda _: lambda dy: dy * first)
    with rt.Tape() as tape:
        _ = [second * 1.0, first * 1.0] if late else [first * 1.0, second * 1.0]
        y = product(variable * 1.0)
    return tape.gradient(y, [variable])


@loop
def a_copied_handle(late):
    one, two = tf.Variable(3.0), tf.Variable(5.0)
    other = tf.identity(one.handle) if late else two.handle
    with rt.Tape() as tape:
        read = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in (one.handle, other)]
        y = read[0] * read[1]
    return tape.gradient(y, [one])


@loop
def an_update_after_a_lookup_in_the_block(late):
    one = tf.Variable(3.0)
    with rt.Tape() as tape:
        y = one * one
        if late:
            tape.versions(one)
            one.assign(y * 0.5)
            y = one * one
    return tape.gradient(y, [one])


@loop
def axes_and_permutations(late):
    x = tf.reshape(tf.range(8.0), (2, 2, 2))
    with rt.Tape() as tape:
        y = tf.transpose(x * x, (0, 2, 1) if late else (2, 1, 0)) * x
        z = tf.reduce_sum(tf.cumsum(y, 1 if late else 0) * x)
    return tape.gradient(z, [x])


@loop
def an_exponent(late):
    with rt.Tape() as tape:
        y = variable ** (4.0 if late else 3.0)
    return tape.gradient(y, [variable])


@pytest.mark.parametrize("name", LOOPS)
def test_the_results_are_those_of_op_by_op(name: str):
    for number in range(STEPS):
        late = number >= CHANGE
        ours = LOOPS[name](late)
        with rt.config(compile=False):
            theirs = LOOPS[name](late)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=f"{name}, step {number}")


def test_a_tape_that_watches_after_a_reset():
    a, b, x = tf.constant(2.0), tf.constant(3.0), tf.constant(5.0)
    tape = rt.Tape()
    for _ in range(4):
        tape.reset()
        tape.watch(x)
        with tape:
            y = a * b * x
        assert [float(grad) for grad in tape.gradient(y, [a, b, x])] == [15.0, 10.0, 6.0]


def test_an_unused_source_of_another_shape():
    for size in (3, 3, 3, 2, 2):
        unused = tf.ones([size])
        with rt.Tape(keep="all") as tape:
            loss = variable * variable
        tape.gradient(loss, [variable])
        assert tape.gradient(unused, unused).shape == (size,)


def test_a_file_that_changes_is_not_read_again(tmp_path):
    path = tmp_path / "numbers"
    for number in range(6):
        path.write_bytes(np.float32([number, 1.0]).tobytes())
        with rt.Tape() as tape:
            x = tf.io.decode_raw(tf.io.read_file(str(path)), tf.float32)
            y = tf.reduce_sum(tf.sin(x) * variable)
        tape.gradient(y, [variable])
        path.write_bytes(np.float32([9.0, 9.0]).tobytes())
        np.testing.assert_allclose(tape.gradient(y, x), np.cos([number, 1.0]) * [1.0, 2.0], rtol=1e-5)
