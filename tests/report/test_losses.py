"""Which loss a report is about if none is given."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt


@pytest.fixture
def w() -> tf.Variable:
    return tf.Variable([1.0, 2.0], name="w")


def chosen(report) -> tuple[str, float, str]:
    (loss,) = report.losses
    return loss.name, loss.value, loss.how


def test_the_last_scalar_that_depends_on_a_variable(w):
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w)
        tf.reduce_mean(tf.cast(w > 1.5, tf.float32))  # accuracy
        tf.reduce_sum(tf.constant([3.0, 4.0]))
    how = "the last scalar that no op used and that depends on a trainable variable"
    assert chosen(tape.report()) == ("loss", 5.0, how)
    del loss


def test_the_last_scalar_of_all(w):
    with rt.Tape() as tape:
        tf.reduce_sum(tf.constant([3.0, 4.0]))
    assert chosen(tape.report()) == ("loss", 7.0, "the last scalar that no op used")


def test_a_scalar_that_is_used_is_not_the_loss(w):
    with rt.Tape() as tape:
        total = tf.reduce_sum(w)
        tf.reduce_sum(w * total)
    assert chosen(tape.report())[1] == 9.0


def test_what_was_differentiated(w):
    with rt.Tape() as tape:
        first = tf.reduce_sum(w * w)
        tf.reduce_sum(w)
    grads = tape.gradient(first, w)
    assert chosen(tape.report()) == ("loss", 5.0, "the tensor whose gradient was computed last")
    del grads


def test_what_an_optimizer_computes_is_not_the_loss(w, tmp_path):
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w)
        tape.backward(loss).apply(tf.keras.optimizers.Adam())
    tape.save(tmp_path / "it.tape")
    loaded = rt.load(tmp_path / "it.tape")
    assert loaded.report().losses[0].value == 5.0


@pytest.mark.parametrize("name", ["loss", "task/loss"])
def test_a_name(w, tmp_path, name):
    with rt.Tape() as tape:
        first = tf.reduce_sum(w * w)
        tf.reduce_sum(w)
    tape.save(tmp_path / "it.tape", {name: first})
    assert chosen(rt.load(tmp_path / "it.tape").report()) == (name, 5.0, "the tensor of that name on the tape")


def test_a_name_that_is_given(w, tmp_path):
    with rt.Tape() as tape:
        a, b = tf.reduce_sum(w * w), tf.reduce_sum(w)
    tape.save(tmp_path / "it.tape", a=a, b=b)
    assert chosen(rt.load(tmp_path / "it.tape").report(loss="a")) == ("a", 5.0, "given to `report`")
    both = rt.load(tmp_path / "it.tape").report(losses=["a", "b"])
    assert [(loss.name, loss.value) for loss in both.losses] == [("a", 5.0), ("b", 3.0)]
    assert both.weights[0].gradient.norm == pytest.approx(float(tf.norm(2.0 * w + 1.0)))


def test_none(w):
    with rt.Tape() as tape:
        w * 2.0
    report = tape.report()
    assert (report.losses, report.weights) == ((), ())
    assert report.advice.startswith("The gradient flow is missing: no tensor is called 'loss'")
    assert [one.backward for one in report.flow] == []
    assert report.checks == ("NaN and infinities", "dead units")
