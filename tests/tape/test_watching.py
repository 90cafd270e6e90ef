"""What is watched, and what may be a source."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import X, assert_close, batch, dense_net


def test_watch_takes_tensors_variables_keras_variables_and_nests():
    v, k, t = tf.Variable(1.0), keras.Variable(2.0), tf.constant(3.0)
    with rt.Tape(watch_accessed_variables=False) as tape:
        tape.watch({"a": [v, k], "b": t})
        y = v * k * t
    assert [id(w) for w in tape.watched_variables()] == [id(v), id(k.value)]
    assert_close(tape.gradient(y, [v, k, t]), [6.0, 3.0, 2.0])


def test_a_watched_tensor_that_took_no_part_is_none():
    other = tf.constant(1.0)
    with rt.Tape() as tape:
        tape.watch(other)
        y = X * X
    assert tape.gradient(y, other) is None
    assert_close(tape.gradient(y, other, unconnected_gradients="zero"), 0.0)
    assert_close(tape.gradient(other, other), 1.0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("accessed", [True, False])
def test_watched_variables_are_those_of_the_stock_tape(accessed, compiled):
    net, data = dense_net(), batch()
    fixed, free, unread = tf.Variable(1.0, trainable=False), tf.Variable(2.0), tf.Variable(3.0)

    def forward():
        return tf.reduce_sum(net(data)) * fixed * free

    if compiled:
        forward = tf.function(forward)

    def watched(kind):
        with kind(watch_accessed_variables=accessed) as tape:
            tape.watch(unread)
            tape.watch(fixed)
            forward()
        return {id(variable) for variable in tape.watched_variables()}

    theirs = watched(tf.GradientTape)
    assert watched(rt.Tape) == theirs
    assert len(theirs) == (9 if accessed else 2)


def test_keras_variables_are_sources_and_targets():
    k = keras.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(k.value**2)
    assert_close(tape.gradient(y, {"k": k}), {"k": tf.constant([2.0, 4.0])})
    assert_close(tape.gradient(k, k), tf.ones(2))


# ------------------------------------------------------------------ what nothing but `watch` knows


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_variable_that_was_only_watched_is_a_target(make, compiled):
    v, w, x = tf.Variable([2.0, 3.0]), tf.Variable(3.0), tf.constant(1.0)

    def ask():
        with make(persistent=True) as tape:
            tape.watch(v)
        weighted = tape.gradient(v, v, output_gradients=tf.constant([1.0, 5.0]))
        assert tape.gradient(v, w) is None
        assert tape.gradient(v, [w, x]) == [None, None]
        return tape.gradient(v, v), weighted, tape.jacobian(v, v)

    ones, weighted, eye = (tf.function(ask) if compiled else ask)()
    np.testing.assert_array_equal(ones, [1.0, 1.0])
    np.testing.assert_array_equal(weighted, [1.0, 5.0])
    np.testing.assert_array_equal(eye, np.eye(2))


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
def test_a_variable_as_its_own_source_need_not_even_be_watched(make):
    v = tf.Variable(2.0)
    with make() as tape:
        pass
    assert float(tape.gradient(v, v)) == 1.0


def test_a_watched_variable_that_is_used_later_is_what_was_used():
    v, x = tf.Variable(2.0, name="v"), tf.constant(3.0)
    with rt.Tape() as tape:
        tape.watch(v)
        y = x * x
    assert float(tape.gradient(v, v)) == 1.0
    assert tape.backward(y).keys() == []
    with tape:
        z = v * v * x
    assert [float(tape.gradient(z, v, through_updates=through)) for through in (False, True)] == [12.0, 12.0]
    assert len(tape.versions(v)) == 1


def test_a_variable_that_nothing_used_does_not_get_into_files(tmp_path):
    v, x = tf.Variable(2.0, name="v"), tf.constant(3.0)
    with rt.Tape() as tape:
        tape.watch(v)
        y = x * x
    assert float(tape.gradient(v, v)) == 1.0
    assert float(tape.replay([(x, 4.0)]).gradient(y, x)) == 8.0
    tape.save(tmp_path / "a.tape", {"x": x, "y": y})
    assert rt.load(tmp_path / "a.tape").names == ("x", "y")


def test_why_agrees_about_a_variable_by_itself():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        tape.watch(v)
    explanation = tape.why(v, v)
    assert explanation.verdict is rt.Verdict.CONNECTED
    assert explanation.detail == "The target is the source itself."


class Pair(tf.experimental.ExtensionType):
    first: tf.Tensor
    second: tf.Tensor


VALUES = tf.constant([[1.0, 2.0], [3.0, 4.0]])
COMPOSITES = {
    "ragged": (lambda: tf.RaggedTensor.from_row_lengths(VALUES, [2, 0]), lambda r: tf.reduce_sum(r * r)),
    "slices": (
        lambda: tf.IndexedSlices(VALUES, tf.constant([0, 2]), tf.constant([3, 2])),
        lambda s: tf.convert_to_tensor(s) ** 2,
    ),
    "slices without a shape": (lambda: tf.IndexedSlices(VALUES, tf.constant([0, 2])), lambda s: s.values * s.values),
    "sparse": (
        lambda: tf.SparseTensor([[0, 0], [1, 2], [2, 1], [2, 3]], tf.reshape(VALUES, [-1]), [3, 4]),
        lambda s: tf.sparse.to_dense(s) ** 2,
    ),
    "of one's own": (lambda: Pair(VALUES, tf.constant(1.0)), lambda pair: pair.first**2 * pair.second),
}


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
@pytest.mark.parametrize("kind", COMPOSITES)
def test_composite_tensors_are_watched_part_by_part(make, kind):
    build, function = COMPOSITES[kind]
    with make() as tape:
        tape.watch(VALUES)
        composite = build()
        tape.watch([composite])
        y = function(composite)
    np.testing.assert_allclose(tape.gradient(y, VALUES), 2.0 * VALUES)


@pytest.mark.parametrize("kind", ["slices", "sparse", "of one's own"])
def test_which_part_of_a_composite_tensor_is_the_source_has_to_be_said(kind):
    build, function = COMPOSITES[kind]
    composite = build()
    with rt.Tape() as tape:
        y = function(composite)
    with pytest.raises(rt.errors.NotASourceError, match=r"It consists of several tensors: give one of them, such"):
        tape.gradient(y, composite)
