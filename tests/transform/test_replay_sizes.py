"""Replays that would be silently wrong: other sizes, two values for one leaf, draws that stay, constants of Python."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import ReplayError, TapeUseError
from retrotape.files import store


def by_length(x: tf.Tensor) -> tf.Tensor:
    kept = tf.boolean_mask(x, x > 0.0)
    return tf.reduce_sum(kept) / len(kept)


def by_shape(x: tf.Tensor) -> tf.Tensor:
    kept = tf.unique(tf.round(x))[0]
    return tf.reduce_sum(kept) * kept.shape[0]


@pytest.fixture(params=[by_length, by_shape])
def sized(request, tmp_path) -> Any:
    """Yield a function and the live and the loaded tape of it, with what to ask for."""
    x = tf.constant([1.0, 2.0, 3.0])
    with rt.Tape() as tape:
        y = request.param(x)
    tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    return request.param, [(tape, x, y), (rt.load(tmp_path / "a.tape"), "x", "y")]


def test_another_size_is_refused_for_python_may_have_used_it(sized):
    function, tapes = sized
    new = tf.constant([2.0, -1.0, 2.0])
    for tape, x, y in tapes:
        assert float(tape.replay([(x, [4.0, 5.0, 6.0])]).value(y)) == float(function(tf.constant([4.0, 5.0, 6.0])))
        with pytest.raises(
            ReplayError,
            match=rf"At .*{__name__.rpartition('.')[2]}\.py:\d+ \w+ gave shape .* and now gives .*"
            r"Python may have used the size: .* `tape\.replay\(\.\.\., trust=True\)`",
        ):
            tape.replay([(x, new)])
        trusted = tape.replay([(x, new)], trust=True).value(y)
        assert float(trusted) != float(function(new))  # which is why it has to be said


def test_two_new_values_for_one_tensor(tmp_path):
    x = tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        y = x * 2.0
    tape.save(tmp_path / "a.tape", {"x": x, "also": x, "y": y})
    with pytest.raises(TapeUseError, match=r"replay got two new values for tensor float32\[2\], which is one tensor"):
        rt.load(tmp_path / "a.tape").replay({"x": [3.0, 4.0], "also": [5.0, 6.0]})


@pytest.mark.parametrize("inputs", ["x", ["x", 1.0], 3.0, [("x",)], tf.constant([1.0])])
def test_inputs_that_are_no_pairs(inputs):
    x = tf.constant(1.0)
    with rt.Tape() as tape:
        _ = x * 2.0
    with pytest.raises(TypeError, match=r"replay takes new values by name, `\{'x': new_x\}`, or pairs, .*; got "):
        tape.replay(inputs)


# ------------------------------------------------------------------ random draws


def test_draws_of_keras_are_drawn_anew(tmp_path):
    keras.utils.set_random_seed(4)
    dropout, x = keras.layers.Dropout(0.5), tf.ones((1, 64))
    dropout(x, training=True)
    with rt.Tape() as tape:
        first = dropout(x, training=True)
        second = dropout(x, training=True)
        y = tf.concat([first, second], 0)
    tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    for recorded, target in ((tape, y), (rt.load(tmp_path / "a.tape"), "y")):
        np.testing.assert_array_equal(recorded.replay([]).value(target), y)
        masks = [recorded.replay([], resample=True).value(target).numpy() for _ in range(3)]
        different = {mask.tobytes() for mask in (*masks, y.numpy())}
        assert len(different) == 4
        assert all(set(np.unique(mask)) == {0.0, 2.0} and mask[0].tobytes() != mask[1].tobytes() for mask in masks)


def test_a_seed_that_is_given_or_written_down_stays():
    seed, x = tf.Variable([1, 2], name="seed"), tf.ones(3)
    with rt.Tape() as tape:
        by_variable = x * tf.random.stateless_normal([3], seed)
        by_number = x * tf.random.stateless_normal([3], [5, 6])
    again = tape.replay([], resample=True)
    assert again.value(by_variable).numpy().tobytes() != by_variable.numpy().tobytes()
    np.testing.assert_array_equal(again.value(by_number), by_number)
    given = tape.replay([(seed, [7, 8])], resample=True)
    np.testing.assert_array_equal(given.value(by_variable), tf.random.stateless_normal([3], [7, 8]))


# ------------------------------------------------------------------ constants that Python made


def test_a_replay_knows_which_constants_python_made(tmp_path):
    x, w = tf.constant([1.25, 2.5]), tf.Variable([3.0, 4.0], name="w")
    with rt.Tape() as tape:
        total = float(tf.reduce_sum(x))
        y = tf.reduce_sum(tf.constant([total, total / 3.0]) * w * x)
    tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    loaded = rt.load(tmp_path / "a.tape")
    loaded.replay({"w": [5.0, 6.0]}).save(tmp_path / "b.tape")
    tape.replay([(w, [5.0, 6.0])]).save(tmp_path / "c.tape", {"x": x, "y": y})
    tape.replay([(x, [1.5, 2.25])]).save(tmp_path / "d.tape", {"x": x, "y": y})
    recorded = born(tmp_path / "a.tape")
    assert len(recorded) == 1
    assert [born(tmp_path / name) for name in ("b.tape", "c.tape", "d.tape")] == [recorded] * 3


def test_each_look_stands_before_the_equation_that_ran_next(tmp_path):
    x = tf.constant([0.3, 0.4])
    with rt.Tape() as tape:
        y = tf.cast(tf.strings.length("word"), tf.float32) * x
        for _ in range(50):
            y = tf.sin(y)
            if tf.reduce_sum(y) > 100.0:
                y = -y
    tape.save(tmp_path / "a.tape", {"x": x, "y": y}, freeze=["StringLength"])
    ops = [eqn.op for eqn in rt.load(tmp_path / "a.tape").program.eqns]
    assert ops == ["Cast", "Mul", *["Sin", "Sum", "Greater"] * 50]
    assert [look["before"] for look in field(tmp_path / "a.tape", "host_reads")] == [5 + 3 * turn for turn in range(50)]


def born(path: Any) -> list[list[int]]:
    return field(path, "python_constants")


def field(path: Any, name: str) -> Any:
    with store.open_tape(path) as container:
        return json.loads(container.entry("tape.json"))[name]
