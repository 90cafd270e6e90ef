"""A step with a custom gradient, whose backward function is given."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

import retrotape as rt

X = tf.constant([1.0, -2.0, 3.0])


def step(backward: Callable[[tf.Tensor], tf.Tensor]) -> tuple[rt.Tape, list[tf.Tensor]]:
    """Record a custom gradient with this backward function."""

    @tf.custom_gradient
    def custom(a):
        return a * 1.0, backward

    with rt.Tape() as tape:
        loss = tf.reduce_sum(custom(X) * X)
    return tape, [tape.gradient(loss, X)]
