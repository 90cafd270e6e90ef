"""Backward functions see variables as they were, however they read them, and nothing reads a live one."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import assert_close, in_threads


def _dataset(v):
    return lambda g: next(iter(tf.data.Dataset.from_tensors(g).map(lambda q: q * v)))


WAYS = {
    "handle": lambda v: lambda g: g * tf.raw_ops.ReadVariableOp(resource=tf.identity(v.handle), dtype=tf.float32),
    "dataset": _dataset,
    "layer": lambda v: lambda g: g * tf.keras.layers.Lambda(lambda q: q * v)(tf.ones([1]))[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_in_eager_code(way):
    v, x = tf.Variable(2.0), tf.constant(1.0)
    f = tf.custom_gradient(lambda p: (tf.sin(p), WAYS[way](v)))
    with rt.Tape() as tape:
        _ = v * 1.0
        y = f(x)
    v.assign(50.0)
    assert float(tape.gradient(y, x)) == 2.0


def test_python_code_in_a_function():
    v, x = tf.Variable(2.0), tf.constant(1.0)
    backward = tf.custom_gradient(lambda p: (tf.sin(p), lambda g: tf.py_function(lambda q: q * v, [g], tf.float32)))
    f = tf.function(backward)
    with rt.Tape() as tape:
        _ = v * 1.0
        y = f(x)
    v.assign(50.0)
    assert float(tape.gradient(y, x)) == 2.0


def _squashed(v):
    @tf.custom_gradient
    def f(p):
        return tf.sin(p) * v, lambda g, variables=None: (g * v * tf.cos(p), [g * tf.sin(p) * v])

    return f


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function])
def test_plain_second_derivatives_count_reads_after_an_assignment(wrap):
    v, x = tf.Variable(0.7), tf.constant(0.5)
    f = _squashed(v)

    def body(a):
        v.assign_add(a)
        return f(a)

    function = wrap(body)
    with rt.Tape() as tape:
        y = function(x)
    assert_close(tape.hessian(y, v), np.sin(0.5))
    found = tape.hvp(y, [x, v], [tf.constant(1.0), tf.constant(1.0)])
    v.assign(0.7)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            z = body(x)
        slopes = tf.add_n(inner.gradient(z, [x, v]))
    assert_close(found, outer.gradient(slopes, [x, v]))


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function])
def test_recompute_grad_beside_an_assignment(wrap):
    v, x = tf.Variable(0.7), tf.constant(0.5)
    again = tf.recompute_grad(tf.sin)

    def body(a):
        v.assign_add(a)
        return a * v**3 + 0.0 * again(a)

    with rt.Tape() as tape:
        y = wrap(body)(x)
    assert_close(tape.hessian(y, v), 6.0 * 1.2 * 0.5)


def _looped(f, v, b):
    return lambda a: tf.while_loop(lambda i, p: i < 2, lambda i, p: (i + 1, p + f(b)), (tf.constant(0), a))[1]


def test_a_custom_gradient_in_a_loop_that_reads_a_tensor_from_outside():
    v, x = tf.Variable(0.7), tf.constant(0.5)
    f = _squashed(v)

    @tf.function
    def function(a, b):
        v.assign(v * 1.0)
        return _looped(f, v, b)(a)

    with rt.Tape() as tape:
        y = function(x * 2.0, x)
    assert_close(tape.gradient(y, x), 2.0 + 2.0 * 0.7 * np.cos(0.5))


def test_a_custom_gradient_in_a_branch_that_assigns(tmp_path):
    v, x = tf.Variable(0.7, name="v"), tf.constant(0.5)
    f = _squashed(v)

    def branch(a):
        v.assign_add(a)
        return f(a)

    function = tf.function(lambda a: tf.cond(a > 0.0, lambda: branch(a), lambda: a))
    with rt.Tape() as tape:
        y = function(x)
    assert_close(tape.gradient(y, x), 1.2 * np.cos(0.5))
    through = 1.2 * np.cos(0.5) + np.sin(0.5) * 1.2  # by what the custom gradient says of the variable
    assert_close(tape.gradient(y, x, through_updates=True), through)
    tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    assert_close(rt.load(tmp_path / "a.tape").gradient("y", "x", through_updates=True), through)


def test_an_unrecorded_update_is_noticed_whatever_else_is_asked_for():
    v, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape() as tape:
        v.assign(x * x)
        with tape.stop_recording():
            v.assign(v * x)
        r = v * 1.0
        y = r * x
    assert float(tape.gradient(y, r, through_updates=True)) == 3.0
    for sources in ([x], [x, r], [r, x], [v, r]):
        with pytest.raises(rt.errors.UnseenUpdateError):
            tape.gradient(y, sources, through_updates=True)


@pytest.mark.parametrize("first", [lambda v: tf.gather(v, [0]), lambda v: tf.nn.embedding_lookup(v, [0])])
def test_no_false_alarm_where_rows_were_read(first):
    table, tape = tf.Variable([2.0, 3.0]), rt.Tape()
    with tape:
        a = first(table)
    with tape:
        y = tf.reduce_sum(a * tf.gather(table, [1]))
    assert_close(tape.gradient(y, table, through_updates=True), np.array([3.0, 2.0]))


def test_no_false_alarm_where_a_slice_was_assigned():
    table, x, tape = tf.Variable([2.0, 3.0]), tf.constant(4.0), rt.Tape()
    with tape:
        table[1:].assign([x * x])
    with tape:
        y = tf.reduce_sum(table * table)
    assert float(tape.gradient(y, x, through_updates=True)) == 256.0


def test_a_variable_made_by_a_backward_function_is_not_saved(tmp_path):
    v, x = tf.Variable(2.0), tf.constant(1.0)
    f = tf.custom_gradient(lambda p: (tf.sin(p), lambda g: g * tf.Variable(v)))
    with rt.Tape() as tape:
        y = f(x)
    with pytest.raises(rt.errors.NotPersistableError, match="VarHandleOp, which a file may not contain"):
        tape.save(tmp_path / "a.tape", {"x": x, "y": y})


def test_a_backward_function_that_reads_rows_and_then_assigns():
    t, x = tf.Variable([2.0, 2.0]), tf.constant(1.0)

    @tf.custom_gradient
    def f(p):
        def grad(g):
            first = tf.gather(t, [0])
            t.assign([5.0, 5.0])
            return g * t.read_value()[0] + 0.0 * first[0]

        return tf.sin(p), grad

    with rt.Tape() as tape:
        _ = t * 1.0
        y = f(x)
    assert float(tape.gradient(y, x)) == 5.0  # as run plainly
    assert t.numpy().tolist() == [5.0, 5.0]


def test_python_code_of_other_threads_sees_what_is():
    v, x, seen = tf.Variable(1.0), tf.constant(1.0), []

    def grad(g):
        in_threads(lambda: seen.append(float(tf.py_function(lambda: v.read_value() * 1.0, [], tf.float32))))
        return g * v

    f = tf.custom_gradient(lambda p: (tf.sin(p), grad))
    with rt.Tape() as tape:
        _ = v * 1.0
        y = f(x)
    v.assign(100.0)
    assert float(tape.gradient(y, x)) == 1.0
    assert seen == [100.0]


def test_a_read_by_the_number_of_its_dtype_is_a_read():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        _ = v * 1.0
        in_threads(lambda: v.assign(2.0))
        y = 3.0 * tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=1)
    assert float(tape.gradient(y, v)) == 3.0
    with pytest.raises(rt.errors.UnseenUpdateError):
        tape.gradient(y, v, through_updates=True)


class _Config:
    def __init__(self):
        self.inner = SimpleNamespace(scale=tf.Variable(2.0))


_scale = tf.Variable(2.0)


def _helper():
    return _scale * 1.0


def _helper_of_a_helper():
    return _helper()


def test_variables_behind_helpers_and_objects():
    config, x = _Config(), tf.constant(1.0)
    f = tf.custom_gradient(lambda p: (tf.sin(p), lambda g: g * config.inner.scale.read_value()))
    h = tf.custom_gradient(lambda p: (tf.sin(p), lambda g: g * _helper_of_a_helper()))
    _scale.assign(2.0)
    with rt.Tape() as tape:
        y, z = f(x), h(x)
    config.inner.scale.assign(50.0)
    _scale.assign(50.0)
    assert [float(tape.gradient(target, x)) for target in (y, z)] == [2.0, 2.0]


def test_output_gradients_from_a_function_into_eager_code():
    x, tape = tf.constant([1.0, 2.0]), rt.Tape()
    with tape:
        y = x * x

    @tf.function
    def asked():
        with tape:
            z = y * 3.0
        return tape.gradient(z, x, output_gradients=tf.constant(2.0))

    assert_close(asked(), 12.0 * x)


@pytest.mark.parametrize("keep", ["needed", "all", "leaves"])
def test_a_second_question_is_answered_like_the_first(keep):
    v, x = tf.Variable(0.7), tf.constant(0.3)
    f = tf.custom_gradient(lambda a: (tf.tanh(a), lambda g: g * (v.value() + 0.5)))

    @tf.function(autograph=False)
    def body(a):
        y = f(a)
        v.assign(tf.tanh(a) + 0.3 * a)
        return y

    with rt.Tape(keep=keep) as tape:
        y = v * 1.0 * tf.sin(body(x))
    first, second = (tape.hvp(y, [x, v], [tf.constant(1.0)] * 2, through_updates=True) for _ in range(2))
    assert_close(first, second)
