"""The text of a program is pasted into reports and read back: it changes only on purpose."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

import retrotape as rt

GOLDEN = Path(__file__).with_name("program.txt")


def recorded() -> str:
    weights, x = tf.Variable([[1.0], [2.0]]), tf.constant([[3.0, 4.0]])
    with rt.Tape() as tape:
        y = tf.nn.silu(x @ weights)
        weights.assign_sub(tf.reduce_sum(y, keepdims=True) * 0.1 * tf.ones([2, 1]))
        tf.concat([y, tf.cast(y > 0.0, tf.float32)], axis=-1)
    return str(tape.program).replace(str(Path(__file__).parent), "golden")


def test_the_text_is_as_it_was():
    assert recorded() + "\n" == GOLDEN.read_text()
