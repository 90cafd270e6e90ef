"""What several losses may be given as, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from query.backward_each.heads import Heads, identical
from retrotape import errors


def test_nothing_gives_nothing():
    with rt.Tape() as tape:
        _ = tf.Variable(1.0) * 2.0
    assert tape.backward_each([]) == []
    assert tape.backward_each(()) == []


def test_a_loss_may_be_a_nest_and_come_twice():
    v, w = tf.Variable(2.0), tf.Variable(3.0)
    with rt.Tape() as tape:
        a, b = v * w, v * v
    rows = tape.backward_each([a, {"a": a, "b": b}, a], [v, w])
    assert [[float(row[v]), float(row[w])] for row in rows] == [[3.0, 2.0], [7.0, 2.0], [3.0, 2.0]]
    assert [float(row[v]) for row in tape.backward_each((loss for loss in (a, b)), v)] == [3.0, 4.0]


def test_a_loss_may_be_a_source():
    v = tf.Variable(2.0)
    x = tf.constant(1.0)
    with rt.Tape() as tape:
        a = v * 3.0
    rows = tape.backward_each([a, x], [v, a, x])
    assert [float(rows[0][key]) for key in (v, a)] == [3.0, 1.0]
    assert float(rows[1][x]) == 1.0


@pytest.mark.parametrize("keep", ["needed", "leaves"])
def test_a_vector_of_losses(keep):
    heads = Heads()
    with rt.Tape(keep=keep) as tape:
        listed = heads.losses()
        losses = tf.stack(listed)
        apart = tf.unstack(losses)
    each = tape.backward_each(losses, heads.sources)
    assert len(each) == 8
    for row, loss, alone in zip(each, apart, tape.backward_each(listed, heads.sources), strict=True):
        expected = tape.backward(loss, heads.sources)
        for key in heads.sources:
            identical(row.get(key), expected.get(key))
        assert row.is_close(alone)


def test_a_vector_of_losses_inside_a_function():
    w = tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def run():
        with rt.Tape() as tape:
            losses = w * w
        return [row[w] for row in tape.backward_each(losses)]

    np.testing.assert_array_equal(run(), np.diag([2.0, 4.0, 6.0]))


def test_one_loss_in_a_vector():
    w = tf.Variable(3.0)
    with rt.Tape() as tape:
        losses = tf.reshape(w * w, [1])
    assert [float(row[w]) for row in tape.backward_each(losses)] == [6.0]


@pytest.mark.parametrize("shape", [(), (2, 2)])
def test_other_tensors_are_refused(shape):
    w = tf.Variable(tf.ones(shape))
    with rt.Tape() as tape:
        losses = w * 2.0
    text = rf"takes a list of losses or a vector of them, got a tensor of shape {tf.TensorShape(shape)}. For one loss"
    with pytest.raises(errors.ShapeMismatchError, match=text.replace("(", r"\(").replace(")", r"\)")):
        tape.backward_each(losses)


def test_a_vector_of_unknown_size_is_refused():
    w = tf.Variable([1.0, 2.0])

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def run(x):
        with rt.Tape() as tape:
            losses = x * w[0]
        return tape.backward_each(losses)[0][w]

    with pytest.raises(
        errors.ShapeMismatchError, match=r"got a tensor of shape \(None,\)\. For one loss use `tape\.back"
    ):
        run(tf.ones(2))


def test_output_gradients():
    w = tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        losses = [w * w, 3.0 * w]
    seed = tf.constant([1.0, 10.0])
    rows = tape.backward_each(losses, output_gradients=seed)
    np.testing.assert_array_equal([row[w] for row in rows], [[2.0, 40.0], [3.0, 30.0]])
    with pytest.raises(
        errors.ShapeMismatchError, match=r"takes no output_gradients for a vector of losses: .* Scale the result"
    ):
        tape.backward_each(losses[0], output_gradients=seed)


def test_zeros_on_request():
    v, w = tf.Variable(2.0), tf.Variable([3.0, 4.0])
    with rt.Tape() as tape:
        losses = [v * v, tf.reduce_sum(w)]
    rows = tape.backward_each(losses, [v, w], unconnected_gradients="zero")
    assert [row.missing for row in rows] == [(), ()]
    assert [float(tf.reduce_sum(row[key])) for row in rows for key in (v, w)] == [4.0, 0.0, 0.0, 2.0]


def test_wrong_use_is_told_as_for_one():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        losses = [v * v, v * 3.0]
    with pytest.raises(
        ValueError, match="since= limits how far to go through updates; give through_updates=True with it"
    ):
        tape.backward_each(losses, since=1)
    with pytest.raises(
        ValueError, match="since= limits how far to go through updates; give through_updates=True with it"
    ):
        tape.backward_each(losses[:1], since=1)
    with pytest.raises(errors.NotASourceError, match="A target must be a tensor"):
        tape.backward_each([losses[0], 3.0])
    with pytest.raises(errors.NotRecordedError, match="made after recording ended"):
        tape.backward_each([losses[0], losses[1] * 2.0])
    with pytest.raises(TypeError, match="through"):
        tape.backward_each(losses, through=True)
    assert [float(row[v]) for row in tape.backward_each(losses)] == [4.0, 3.0]
