"""Value numbering: equal numbers are a proof, and different ones are not."""

from __future__ import annotations

import tensorflow as tf

import retrotape as rt
from retrotape.transform._numbering import Numbering


@tf.custom_gradient
def doubled(x):
    return tf.identity(x), lambda grad: 2.0 * grad


@tf.custom_gradient
def tripled(x):
    return tf.identity(x), lambda grad: 3.0 * grad


def equal(tape: rt.Tape, left: tf.Tensor, right: tf.Tensor, *apart: tf.Tensor) -> bool:
    trace = tape._eager("test").trace
    trace.flush()
    ours, theirs, *others = (trace.tensors.find(one) for one in (left, right, *apart))
    numbering = Numbering(trace, [ours, theirs], others)
    return numbering.number(ours) == numbering.number(theirs)


def test_the_same_op_of_the_same_inputs():
    x = tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        first, again = tf.exp(x * 2.0), tf.exp(x * 2.0)
        other, scaled = tf.sin(x * 2.0), tf.exp(x * 3.0)
        left, right = tf.reduce_sum(x[None], 0), tf.reduce_sum(x[None], 1)
    assert equal(tape, first, again)
    assert not equal(tape, first, other)
    assert not equal(tape, first, scaled)
    assert not equal(tape, left, right)


def test_leaves_are_equal_by_their_bytes_unless_a_query_may_ask_for_them():
    x, twin = tf.constant([1.0, 2.0]), tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        first, second, third = x * x, twin * twin, tf.cast(x, tf.int32)
    assert equal(tape, first, second)
    assert not equal(tape, first, second, x)
    assert not equal(tape, first, third)


def test_strings():
    a, twin, b = tf.constant("1.5"), tf.constant("1.5"), tf.constant("2.5")
    rows, same, others = (tf.constant(texts) for texts in (["a", "b"], ["a", "b"], ["a", "c"]))
    with rt.Tape() as tape:
        scalars = [tf.strings.to_number(text) for text in (a, twin, b)]
        vectors = [tf.strings.length(texts) for texts in (rows, same, others)]
    for first, second, third in (scalars, vectors):
        assert equal(tape, first, second)
        assert not equal(tape, first, third)


def test_what_a_query_may_ask_for_is_not_passed_over():
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        inner, twin = x * x, x * x
        first, second = tf.exp(inner), tf.exp(twin)
    assert equal(tape, first, second)
    assert not equal(tape, first, second, twin)


def test_equal_values_of_two_variables_are_not_the_same():
    v, w = tf.Variable(2.0), tf.Variable(2.0)
    with rt.Tape() as tape:
        first, second, again = v * 3.0, w * 3.0, v * 3.0
    assert not equal(tape, first, second)
    assert equal(tape, first, again)


def test_what_was_assigned_counts_not_where():
    v, w, x = tf.Variable(1.0), tf.Variable(5.0), tf.constant(2.0)
    with rt.Tape() as tape:
        v.assign(x * 2.0)
        w.assign(x * 2.0)
        first, second = v * 1.0, w * 1.0
        v.assign_add(1.0)
        third = v * 1.0
    assert equal(tape, first, second)
    assert not equal(tape, first, third)


def test_draws_are_never_the_same():
    with rt.Tape() as tape:
        first, second = tf.floor(tf.random.uniform([])), tf.floor(tf.random.uniform([]))
    assert float(first) == float(second)
    assert not equal(tape, first, second)


def test_backward_functions_that_differ():
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        first, second = doubled(x) * 1.0, tripled(x) * 1.0
    assert not equal(tape, first, second)


def test_sizes_depend_on_shapes_only():
    x, y, z = tf.ones([2, 3]), tf.zeros([2, 3]), tf.zeros([3, 2])
    with rt.Tape() as tape:
        first, second, third = (tf.raw_ops.Shape(input=one * 2.0) * 2 for one in (x, y, z))
    assert equal(tape, first, second)
    assert not equal(tape, first, third)
