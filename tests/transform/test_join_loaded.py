"""Loaded tapes share nothing, and are connected by name."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("halves")
    w, v = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="w"), tf.Variable([[0.5], [0.25]], name="v")
    x = tf.constant([[0.5, -0.2]])
    with rt.Tape() as trunk:
        y = tf.tanh(x @ w)
    with rt.Tape() as head:
        z = tf.reduce_sum((y @ v) ** 2 * y[0, 0])
    trunk.save(folder / "trunk.tape", {"trunk/x": x, "trunk/y": y})
    head.save(folder / "head.tape", {"head/x": y, "head/z": z})
    return folder, rt.join(trunk, head), {"w": w, "v": v, "x": x, "z": z}


def load(folder, *names):
    return [rt.load(folder / f"{name}.tape") for name in names]


@pytest.mark.parametrize("names", [("trunk", "head"), ("head", "trunk")])
@pytest.mark.parametrize("reverse", [False, True])
def test_any_order_of_loading_and_joining(halves, names, reverse):
    folder, live, parts = halves
    tapes = load(folder, *names)
    joined = rt.join(*(reversed(tapes) if reverse else tapes), connect={"head/x": "trunk/y"})
    got = joined.gradient("head/z", ["w", "v", "trunk/x"])
    want = live.gradient(parts["z"], [parts["w"], parts["v"], parts["x"]])
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
    ones = tf.ones((2, 2))
    np.testing.assert_allclose(joined.hvp("head/z", "w", ones), live.hvp(parts["z"], parts["w"], ones), rtol=1e-6)


def test_without_connect_there_is_no_path(halves):
    assert rt.join(*load(halves[0], "trunk", "head")).gradient("head/z", "trunk/x") is None


def test_joined_tapes_are_saved_and_replayed(halves, tmp_path):
    folder, live, parts = halves
    joined = rt.join(*load(folder, "head", "trunk"), connect={"head/x": "trunk/y"})
    joined.save(tmp_path / "whole.tape")
    whole = rt.load(tmp_path / "whole.tape")
    np.testing.assert_array_equal(whole.gradient("head/z", "w"), live.gradient(parts["z"], parts["w"]))
    new = tf.constant([[0.1, 0.4]])
    want = live.replay([(parts["x"], new)]).gradient(parts["z"], parts["x"])
    np.testing.assert_allclose(joined.replay({"trunk/x": new}).gradient("head/z", "trunk/x"), want, rtol=1e-6)


def test_a_live_tape_before_a_loaded_one(halves, tmp_path):
    folder, _, parts = halves
    (head,) = load(folder, "head")
    x = tf.constant([[0.5, -0.2]])
    with rt.Tape() as trunk:
        y = tf.tanh(x @ parts["w"])
    trunk.save(tmp_path / "again.tape", {"y": y})
    joined = rt.join(head, rt.load(tmp_path / "again.tape"), connect={"head/x": "y"})
    assert joined.gradient("head/z", "w") is not None


def test_other_values_are_another_run(halves):
    head, trunk = load(halves[0], "head", "trunk")
    other = head.replay({"head/x": [[1.0, 1.0]]})
    with pytest.raises(errors.TapeUseError, match=r"'head/x' is float32\[1, 2\] .* they are not the same"):
        rt.join(other, trunk, connect={"head/x": "trunk/y"})


def test_names_that_are_not_there_or_no_inputs(halves):
    head, trunk = load(halves[0], "head", "trunk")
    with pytest.raises(errors.UnknownNameError, match="nothing named 'trunk/nobody'"):
        rt.join(head, trunk, connect={"head/x": "trunk/nobody"})
    with pytest.raises(errors.TapeUseError, match="must name an input of a loaded tape, and this is no input"):
        rt.join(head, trunk, connect={"trunk/y": "head/x"})


def test_a_circle(halves, tmp_path):
    x = tf.constant(2.0)
    for number in (1, 2):
        with rt.Tape() as tape:
            y = tf.identity(x)
        tape.save(tmp_path / f"{number}.tape", {f"x{number}": x, f"y{number}": y})
    tapes = [rt.load(tmp_path / f"{number}.tape") for number in (1, 2)]
    with pytest.raises(errors.TapeUseError, match="has a cycle"):
        rt.join(*tapes, connect={"x1": "y2", "x2": "y1"})


def test_a_name_on_two_tapes_is_ambiguous(halves):
    head, again, trunk = load(halves[0], "head", "head", "trunk")
    with pytest.raises(errors.TapeUseError, match="2 of the tapes have the name 'head/x'"):
        rt.join(head, again, trunk, connect={"head/x": "trunk/y"})


def test_what_two_tapes_call_the_same_has_to_be_told_apart(halves):
    head, again = load(halves[0], "head", "head")
    joined = rt.join(head, again)
    with pytest.raises(errors.TapeUseError, match=r"More than one .* has the name 'head/z'\. Choose one: give `tape\["):
        joined.gradient("head/z", "head/x")
    want = head.gradient("head/z", "head/x")
    np.testing.assert_array_equal(joined.gradient(head["head/z"], head["head/x"]), want)
    assert joined.gradient(head["head/z"], again["head/x"]) is None


def test_connect_is_a_mapping(halves):
    with pytest.raises(TypeError, match=r"connect= takes a mapping of names, got 'head/x': `connect=\{'head/x'"):
        rt.join(*load(halves[0], "head", "trunk"), connect="head/x")
