"""`log` and `report` take the same tensor for the loss if none is given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt

Programs = dict[str, Callable[[tf.Variable, Any], Any]]


def loss_then_accuracy(w: tf.Variable, folder: Any) -> Any:
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w)
        tf.reduce_mean(tf.cast(w > 1.5, tf.float32))
    del loss
    return tape


def two_losses(w: tf.Variable, folder: Any) -> Any:
    with rt.Tape() as tape:
        tf.reduce_sum(w * 7.0)
        tf.reduce_sum(w * w)
    return tape


def differentiated(w: tf.Variable, folder: Any) -> Any:
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w)
        tf.reduce_sum(w * 7.0)
    tape.kept = tape.gradient(loss, w)
    return tape


def differentiated_inside(w: tf.Variable, folder: Any) -> Any:
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w)
        tape.kept = tape.gradient(loss, w)
        tf.norm(tape.kept)
    return tape


def after_a_step(w: tf.Variable, folder: Any) -> Any:
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w)
        tape.backward(loss).apply(tf.keras.optimizers.Adam())
    return tape


def named(w: tf.Variable, folder: Any) -> Any:
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w)
        tf.reduce_sum(w * 7.0)
    tape.save(folder / "it.tape", {"task/loss": loss})
    return rt.load(folder / "it.tape")


def a_count_is_called_loss(w: tf.Variable, folder: Any) -> Any:
    with rt.Tape() as tape:
        count = tf.size(w)
        tf.reduce_sum(w * w)
    tape.save(folder / "it.tape", {"loss": count})
    return rt.load(folder / "it.tape")


PROGRAMS: Programs = {
    one.__name__: one
    for one in (
        loss_then_accuracy,
        two_losses,
        differentiated,
        differentiated_inside,
        after_a_step,
        named,
        a_count_is_called_loss,
    )
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_take_the_same(name, tmp_path):
    w = tf.Variable([1.0, 2.0], name="w")
    tape = PROGRAMS[name](w, tmp_path)
    (reported,) = tape.report().losses
    assert reported.value == 5.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grads = tape.log(tf.summary.create_noop_writer(), 0)
    assert [grad.numpy().tolist() for grad in grads.values()] == [[2.0, 4.0]]
    assert grads.missing == ()
