"""What is redacted is not in the file, in no form, and the tape says what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.trips import assert_same, trip
from retrotape.errors import LostValueError, ReplayError

SECRET = [3.25, -7.125, 11.0625, 0.875]
OTHER = [1.0, 0.5, -2.0, 4.0]
VALUES = ("leaves", "needed", "all")


def is_in(path: Path, values: Any, dtype: str = "float32") -> bool:
    return np.asarray(values, dtype).tobytes() in path.read_bytes()


def model(x: Any, w: Any) -> tf.Tensor:
    hidden = tf.tanh(tf.reshape(tf.identity(x), [2, 2]) @ tf.reshape(w, [2, 2]))
    return tf.reduce_sum(tf.nn.silu(hidden) ** 2)


def recorded() -> tuple[rt.Tape, Any, Any, Any, Any]:
    x, w = tf.constant(SECRET), tf.Variable(OTHER, name="w")
    with rt.Tape() as tape:
        y = model(x, w)
        apart = tf.reduce_sum(w**2)
    return tape, x, w, y, apart


@pytest.mark.parametrize("values", VALUES)
def test_no_bytes_of_it_are_in_the_file(values, tmp_path):
    tape, x, _, y, _ = recorded()
    shown = trip(tape, {"x": x, "y": y}, tmp_path, values=values)
    assert is_in(shown.path, SECRET)
    hidden = trip(tape, {"x": x, "y": y}, tmp_path, values=values, redact=["x"])
    assert not is_in(hidden.path, SECRET)
    assert not is_in(hidden.path, y)  # nor what could be told from it
    assert is_in(hidden.path, OTHER)


@pytest.mark.parametrize("values", VALUES)
def test_variables_can_be_redacted(values, tmp_path):
    x, w = tf.constant(OTHER), tf.Variable(SECRET, name="w")
    with rt.Tape() as tape:
        y = model(x, w)
        w.assign(w * 2.0)
        z = y + tf.reduce_sum(w * x)
    hidden = trip(tape, {"x": x, "z": z}, tmp_path, values=values, redact=["w"])
    assert not is_in(hidden.path, SECRET)
    assert not is_in(hidden.path, np.multiply(SECRET, 2.0))
    with pytest.raises(LostValueError, match="The value of 'w' was left out"):
        hidden.loaded.gradient("z", "x")
    with pytest.raises(LostValueError, match="The value of 'w' was left out"):
        hidden.loaded["w"].value()
    again = hidden.loaded.replay({"w": SECRET})
    assert_same(again.gradient("z", "x"), tape.gradient(z, x))
    assert_same(
        again.gradient("z", "w", through_updates=True),
        tf.convert_to_tensor(tape.gradient(z, w, through_updates=True)),
    )


def test_strings_can_be_redacted(tmp_path):
    x, words = tf.constant(OTHER), tf.constant(["a secret word", "b"])
    with rt.Tape() as tape:
        y = tf.reduce_sum(x) * tf.cast(tf.strings.length(words)[0], tf.float32)
    hidden = trip(tape, {"x": x, "y": y, "words": words}, tmp_path, redact=["words"])
    assert b"secret" not in hidden.path.read_bytes()
    assert float(hidden.loaded.replay({"words": ["abc", ""]})["y"]) == pytest.approx(3.0 * sum(OTHER))


def test_questions_that_need_it_say_so(tmp_path):
    tape, x, _, y, apart = recorded()
    loaded = trip(tape, {"x": x, "y": y, "apart": apart}, tmp_path, redact=["x"]).loaded
    asked = [
        lambda: loaded["x"],
        lambda: loaded["y"],
        lambda: loaded.value("y"),
        lambda: loaded.gradient("y", "x"),
        lambda: loaded.gradient("y", "w"),
        lambda: loaded.hvp("y", "w", tf.ones(4)),
        lambda: loaded.backward("y"),
        lambda: list(loaded.stream("y")),
    ]
    for ask in asked:
        with pytest.raises(LostValueError) as caught:
            ask()
        assert str(caught.value) == (
            "The value of 'x' was left out when this tape was saved (redact=['x']). "
            "Give one: `tape.replay({'x': ...})`, and query the tape that it returns."
        )


def test_questions_that_do_not_need_it_are_answered(tmp_path):
    tape, x, w, y, apart = recorded()
    loaded = trip(tape, {"x": x, "y": y, "apart": apart}, tmp_path, redact=["x"]).loaded
    assert_same(loaded.gradient("apart", "w"), tape.gradient(apart, w))


def test_replay_with_another_value(tmp_path):
    tape, x, w, y, _ = recorded()
    loaded = trip(tape, {"x": x, "y": y}, tmp_path, redact=["x"]).loaded
    for values in (SECRET, OTHER):
        again, given = loaded.replay({"x": values}), tf.constant(values)
        with rt.Tape() as live:
            wanted = model(given, w)
        np.testing.assert_allclose(again["y"], wanted, rtol=1e-6)
        assert_same(again.gradient("y", "x"), live.gradient(wanted, given))
        assert_same(again.hvp("y", "w", tf.ones(4)), live.hvp(wanted, w, tf.ones(4)))


def test_it_stays_left_out_when_saved_again(tmp_path):
    tape, x, _, y, _ = recorded()
    loaded = trip(tape, {"x": x, "y": y}, tmp_path, redact=["x"]).loaded
    loaded.save(tmp_path / "b.tape")
    again = rt.load(tmp_path / "b.tape")
    with pytest.raises(LostValueError, match="The value of 'x' was left out"):
        again.gradient("y", "w")
    assert_same(again.replay({"x": SECRET}).gradient("y", "w"), tape.gradient(y, loaded_variable(tape)))
    filled = loaded.replay({"x": [9.0, 8.5, 7.0, 6.0]})
    filled.save(tmp_path / "c.tape")  # what was given belongs to that tape
    assert_same(rt.load(tmp_path / "c.tape").gradient("y", "x"), filled.gradient("y", "x"))
    filled.save(tmp_path / "d.tape", redact=["x"])
    assert is_in(tmp_path / "c.tape", [9.0, 8.5, 7.0, 6.0])
    assert not is_in(tmp_path / "d.tape", [9.0, 8.5, 7.0, 6.0])


def loaded_variable(tape: rt.Tape) -> Any:
    (variable,) = tape.watched_variables()
    return variable


def test_random_numbers_can_be_redacted_and_are_not_drawn_again(tmp_path):
    x = tf.constant(OTHER)
    with rt.Tape() as tape:
        noise = tf.random.uniform([4])
        y = tf.reduce_sum(x * noise)
    (drawn,) = [eqn.outputs[0] for eqn in tape.program.eqns if eqn.op == "RandomUniform"]
    value = tape._session.trace.value(drawn)
    made = trip(tape, {"x": x, "y": y, "noise": value}, tmp_path, redact=["noise"])
    assert not is_in(made.path, noise)
    with pytest.raises(LostValueError, match="The value of 'noise' was left out"):
        made.loaded.gradient("y", "x")


def test_a_look_at_what_is_missing_cannot_be_checked(tmp_path):
    x = tf.constant(SECRET)
    with rt.Tape() as tape:
        y = tf.reduce_sum(x) * 2.0
        if y > 0.0:  # true for all values here, but nobody can know
            y = y * x[0]
    loaded = trip(tape, {"x": x, "y": y}, tmp_path, redact=["x"]).loaded
    with pytest.raises(ReplayError, match=r"test_redact\.py:\d+ .*\(bool; its old value was left out of the file\)"):
        loaded.replay({"x": OTHER})
    assert float(loaded.replay({"x": OTHER}, trust=True)["y"]) == pytest.approx(2.0 * sum(OTHER) * OTHER[0])


# ------------------------------------------------------------------ what cannot be


def test_a_second_copy_is_found(tmp_path):
    x = tf.constant(SECRET)
    copy = tf.identity(x)  # outside of the block, so nobody knows where it came from
    with rt.Tape() as tape:
        y = tf.reduce_sum(x * copy)
    with pytest.raises(
        ValueError, match=r"%1, float32\[4\], has the same bytes \(Mul at .*test_redact\.py:\d+ takes it"
    ):
        tape.save(tmp_path / "a.tape", {"x": x, "y": y}, redact=["x"])
    assert not (tmp_path / "a.tape").exists()
    tape.save(tmp_path / "a.tape", {"x": x, "y": y, "copy": copy}, redact=["x", "copy"])
    assert not is_in(tmp_path / "a.tape", SECRET)
    loaded = rt.load(tmp_path / "a.tape")
    assert float(loaded.replay({"x": OTHER, "copy": OTHER})["y"]) == pytest.approx(float(np.dot(OTHER, OTHER)))


def test_what_is_computed_cannot_be_redacted(tmp_path):
    tape, x, _, y, _ = recorded()
    with pytest.raises(ValueError, match=r"redact names 'y', which can be computed from other values"):
        tape.save(tmp_path / "a.tape", {"x": x, "y": y}, redact=["y"])


def test_names_that_there_are(tmp_path):
    tape, x, _, y, _ = recorded()
    with pytest.raises(ValueError, match=r"redact names \['z'\], which is not among the names \['w', 'x', 'y'\]"):
        tape.save(tmp_path / "a.tape", {"x": x, "y": y}, redact=["z"])
    with pytest.raises(TypeError, match=r"redact= takes a list of names, got 'x': `redact=\['x'\]`"):
        tape.save(tmp_path / "a.tape", {"x": x, "y": y}, redact="x")
    assert not (tmp_path / "a.tape").exists()


def test_constants_inside_functions(tmp_path):
    x = tf.constant(SECRET)
    function = tf.function(lambda x: tf.reduce_sum(x * tf.constant(SECRET)))
    with rt.Tape() as tape:
        y = function(x)
    with pytest.raises(ValueError, match="has the same bytes"):
        tape.save(tmp_path / "a.tape", {"x": x, "y": y}, redact=["x"])
