"""An isolated tape takes what a loaded one takes, answers in the same form, and never gives one answer for another."""

from __future__ import annotations

import inspect
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import _wire
from retrotape.errors import IsolationError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    x, w, words = tf.constant([[0.5, -0.2]]), tf.Variable([[1.0], [3.0]], name="m/w"), tf.constant([["a", "b\xff\0"]])
    idle = tf.Variable(2.0, name="idle")
    with rt.Tape() as tape:
        h = tf.sin(x) @ w
        loss = tf.reduce_sum(h**2) * tf.cast(tf.size(tf.strings.upper(words)), tf.float32)
        _ = tf.math.log(x[0, 1]) + idle
    target = tmp_path_factory.mktemp("tapes") / "a.tape"
    tape.save(target, {"x": x, "h": h, "loss": loss, "words": words})
    return target


@pytest.fixture(scope="module")
def both(path):
    with rt.load(path, isolate=True, seconds=120.0) as held:
        yield held, rt.load(path)


ZERO = tf.UnconnectedGradients.ZERO
ASKED = {
    "positional seed": lambda t: t.gradient("h", "x", tf.constant([[2.0]])),
    "enum": lambda t: t.gradient("loss", ["idle", "x"], unconnected_gradients=ZERO),
    "positional enum": lambda t: t.gradient("loss", ["idle"], None, ZERO),
    "tuple": lambda t: t.gradient("loss", ("x", {3: ("w",), 7: "idle"})),
    "array": lambda t: t.jvp("h", "x", np.ones((1, 2), np.float32)),
    "NumPy's number": lambda t: t.jacobian("h", "x", chunk=np.int64(1)),
    "words": lambda t: t["words"],
    "keywords": lambda t: t.hvp(target="loss", sources="x", vectors=tf.ones((1, 2))),
}


@pytest.mark.parametrize("name", ASKED)
def test_the_same_arguments_and_forms(both, name):
    got, want = (ASKED[name](tape) for tape in both)
    assert type(got) is type(want)
    tf.nest.assert_same_structure(got, want)
    for one, other in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_what_is_told_is_told_in_words(both):
    held, loaded = both
    assert held.why("loss", "idle") == str(loaded.why("loss", "idle"))
    assert held.first_nonfinite() == str(loaded.first_nonfinite())
    assert held.first_nonfinite("loss") is None
    assert held.summary() == str(loaded.summary())


def test_names_as_on_a_loaded_tape(both):
    held, loaded = both
    assert list(held) == list(loaded)
    for name in ("x", "m/w", "w", "nobody", "", 3, None):
        assert (name in held) == (name in loaded)
    with pytest.raises(TypeError, match=r"known by name: `tape\['name'\]`; got 3"):
        held[3]
    assert repr(held) == repr(loaded).replace("loaded", "isolated")


def test_the_same_parameters(both):
    for name in ("gradient", "vjp", "jacobian", "batch_jacobian", "per_example", "jvp", "hvp", "hessian", "why"):
        got, want = (inspect.signature(getattr(kind, name)) for kind in (rt.IsolatedTape, rt.LoadedTape))
        assert list(got.parameters) == list(want.parameters)


def test_what_no_question_takes_is_refused_here(both):
    held = both[0]
    with pytest.raises(TypeError, match="unexpected keyword argument 'trough_updates'"):
        held.gradient("loss", "x", trough_updates=True)
    with pytest.raises(
        TypeError, match="Got ResourceVariable, which is not sent from one process to another: give names"
    ):
        held.gradient("loss", tf.Variable(1.0))
    np.testing.assert_array_equal(held["x"], both[1]["x"])  # and it goes on


@pytest.mark.parametrize("name", ["backward", "stream", "versions", "replay", "save", "variables"])
def test_what_cannot_be_asked_says_what_can(both, name):
    with pytest.raises(AttributeError, match=rf"An isolated tape has no '{name}': .* `rt\.load\(path\)`"):
        getattr(both[0], name)
    with pytest.raises(AttributeError, match="no attribute 'gradeint'"):
        both[0].gradeint  # noqa: B018


def test_an_interrupted_question_is_not_answered_by_the_next(path, monkeypatch):
    held = rt.load(path, isolate=True)

    def interrupted(stream, largest):
        raise KeyboardInterrupt

    real = _wire.receive
    monkeypatch.setattr(_wire, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        held.value("x")
    monkeypatch.setattr(_wire, "receive", real)
    with pytest.raises(IsolationError, match="a question was interrupted"):
        held.value("loss")
    assert held._child.poll() is not None


def test_what_ended_it_is_said_again(path):
    held = rt.load(path, isolate=True)
    os.kill(held._child.pid, signal.SIGXCPU)
    for _ in range(2):
        with pytest.raises(IsolationError, match="it has used up its processor time"):
            held.value("x")


def test_a_process_that_talks_nonsense_is_ended(path, monkeypatch):
    held = rt.load(path, isolate=True)
    monkeypatch.setattr(_wire, "receive", lambda stream, largest: [1, 2])
    with pytest.raises(IsolationError, match="it ended with code -9"):
        held.value("x")
