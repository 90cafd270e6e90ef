"""A path, and a gradient that is zero."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import retrotape as rt
from golden.why.registry import Asked, program, weights


@program
def dead_relu() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hidden = tf.nn.relu(w - 10.0)  # here
        loss = tf.reduce_sum(hidden * 2.0)
    return tape, loss, w


@program
def saturated_sigmoid() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        gate = tf.sigmoid(w + 200.0)  # here
        loss = tf.reduce_sum(gate**2)
    return tape, loss, w


@program
def clipped_away() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        bounded = tf.clip_by_value(w * 100.0, -1.0, 1.0)  # here
        loss = tf.reduce_sum(bounded)
    return tape, loss, w


@program
def mask_of_zeros() -> Asked:
    w, mask = weights(), tf.zeros([3])
    with rt.Tape() as tape:
        kept = (w**2) * mask  # here
        loss = tf.reduce_sum(kept)
    return tape, loss, w


@program
def loss_weight_of_zero() -> Asked:
    w, rate = weights(), tf.constant(0.0)
    with rt.Tape() as tape:
        penalty = tf.reduce_sum(w**2)
        loss = 5.0 + rate * penalty  # here
    return tape, loss, w


@program
def branch_not_taken_by_where() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        chosen = tf.where(w > 100.0, w**2, tf.ones([3]))  # here
        loss = tf.reduce_sum(chosen)
    return tape, loss, w


@program
def branch_not_taken_by_cond() -> Asked:
    w, flag = weights(), tf.constant(False)

    @tf.function
    def chosen(x: Any, flag: Any) -> Any:
        return tf.cond(flag, lambda: tf.reduce_sum(x), lambda: tf.constant(1.0))

    with rt.Tape() as tape:
        loss = chosen(w, flag) * 2.0  # here
    return tape, loss, w


@program
def zero_kernel() -> Asked:
    w, x = weights(), tf.zeros([3, 3])
    with rt.Tape() as tape:
        hidden = tf.linalg.matvec(x, w)  # here
        loss = tf.reduce_sum(hidden)
    return tape, loss, w


@program
def square_at_zero() -> Asked:
    w = tf.Variable([0.0, 0.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.square(w))  # here
    return tape, loss, w


@program
def softmax_of_one() -> Asked:
    w = tf.Variable([[0.3]], name="w")
    with rt.Tape() as tape:
        chances = tf.nn.softmax(w)  # here
        loss = tf.reduce_sum(chances)
    return tape, loss, w


@program
def terms_that_cancel() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w) - tf.reduce_sum(w)
    return tape, loss, w


@program
def stopped_in_a_loop_of_a_function() -> Asked:
    w = weights()

    @tf.function
    def decayed(x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.stop_gradient(x * 0.5)  # here
        return x

    with rt.Tape() as tape:
        loss = tf.reduce_sum(decayed(w))
    return tape, loss, w


@program
def the_other_result_of_a_function() -> Asked:
    w, v = weights(), tf.Variable([1.0, 1.0, 1.0], name="v")

    @tf.function
    def errors(x: Any, y: Any) -> Any:
        return tf.reduce_sum(x**2), tf.reduce_sum(y**2)

    with rt.Tape() as tape:
        loss, _ = errors(v, w * 1.0)  # here
    return tape, loss, w


@program
def too_small_for_half_precision() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        half = tf.cast(w, tf.float16) * tf.constant(1e-4, tf.float16) * tf.constant(1e-4, tf.float16)  # here
        loss = tf.reduce_sum(half)
    return tape, loss, w


@program
def nothing_left_by_a_mask() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.boolean_mask(w, w > 100.0))  # here
    return tape, loss, w


@program
def sum_of_chances() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        chances = tf.nn.softmax(w)  # here
        loss = tf.reduce_sum(chances)
    return tape, loss, w


@program
def dropped_before_a_square() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        dropped = tf.where(w > 100.0, w, 0.0)
        loss = tf.reduce_sum(dropped**2)  # here
    return tape, loss, w


@program
def another_part_of_a_concat() -> Asked:
    w, v = weights(), tf.Variable([9.0], name="v")
    with rt.Tape() as tape:
        both = tf.concat([w, v], axis=0)  # here
        loss = tf.reduce_max(both)
    return tape, loss, w
