"""A replay checks what a tf.function has chosen: a branch, the number of turns of a loop, a case."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors


@tf.function
def branches(x):
    return tf.reduce_sum(x * 2.0) if tf.reduce_sum(x) > 0.0 else tf.reduce_sum(x * 3.0)


@tf.function
def turns(x):
    while tf.reduce_sum(x) < 10.0:
        x = x * 2.0
    return tf.reduce_sum(x)


@tf.function
def cases(x):
    return tf.switch_case(tf.cast(x[0], tf.int32), [lambda: tf.reduce_sum(x), lambda: tf.reduce_sum(x * x)])


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    ("function", "start", "alike", "unlike"),
    [
        (branches, [1.0, 1.0], [2.0, 3.0], [-1.0, -1.0]),
        (turns, [1.0, 1.0], [1.1, 1.0], [4.0, 4.0]),
        (cases, [1.0, 2.0], [1.0, 3.0], [0.0, 2.0]),
    ],
)
def test_another_choice_is_refused(tmp_path, function, start, alike, unlike, saved):
    x = tf.constant(start)
    with rt.Tape() as tape:
        y = function(x)
    tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    tape, x, y = (rt.load(tmp_path / "a.tape"), "x", "y") if saved else (tape, x, y)
    again = tape.replay([(x, alike)])
    assert float(again.value(y)) == pytest.approx(float(function(tf.constant(alike))))
    with pytest.raises(errors.ReplayError, match=r"test_replay_choices\.py:\d+ .*a condition in a tf.function"):
        tape.replay([(x, unlike)])
