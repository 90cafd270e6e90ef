"""A step to be logged."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import retrotape as rt

X = tf.reshape(tf.sin(tf.range(32.0)), [8, 4])


def recorded(model: Any) -> tuple[rt.Tape, tf.Tensor]:
    """Return the tape of a step, and its loss."""
    with rt.Tape() as tape:
        loss = tf.reduce_mean(model(X) ** 2)
    return tape, loss
