"""A user's program, which is type-checked against the installed package and never run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
from typing_extensions import assert_type

import retrotape as rt
from retrotape.errors import RetrotapeError


def asked(model: tf.keras.Model, x: tf.Tensor) -> rt.Gradients:
    with rt.Tape(keep="segments") as tape:
        assert_type(tape, rt.Tape)
        loss = tf.reduce_sum(model(x))
    assert_type(tape.why(loss, x), rt.Explanation)
    assert_type(tape.why(loss, x).verdict, rt.Verdict)
    assert_type(tape.first_nonfinite(loss), "rt.Nonfinite | None")
    assert_type(tape.summary(), rt.Summary)
    assert_type(tape.program, rt.Program)
    assert_type(tape.memory(), rt.Memory)
    grads = tape.backward(loss)
    assert_type(grads, rt.Gradients)
    assert_type(0.5 * grads + grads, rt.Gradients)
    assert_type(grads.clip(global_norm=1.0), rt.Gradients)
    assert_type(tape.backward_each([loss, loss]), rt.Rows)
    assert_type(tape.backward_each({"loss": loss})["loss"], rt.Gradients)
    return grads


def filed(tape: rt.Tape, loss: tf.Tensor, path: Path) -> rt.LoadedTape:
    tape.save(path, {"loss": loss})
    loaded = rt.load(path)
    assert_type(loaded, rt.LoadedTape)
    assert_type(rt.load(path, isolate=True), rt.IsolatedTape)
    assert_type(rt.join(tape, loaded), rt.JoinedTape)
    return loaded


def many(batches: Iterator[tf.Tensor], model: tf.keras.Model) -> float:
    try:
        total = rt.accumulate(lambda batch: tf.reduce_mean(model(batch)), batches)
        assert_type(total, rt.Accumulated)
    except RetrotapeError as error:
        assert_type(str(error), str)
    return 0.0
