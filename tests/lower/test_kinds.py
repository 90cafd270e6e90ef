"""Every kind of query is compiled, with seeds, sources and results of every kind."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import batch, dense_net
from helpers.warm import FIRST, assert_same, reasons

W = tf.Variable([1.0, -2.0, 3.0], name="w")
V = tf.Variable([0.5, 0.25, -1.0], name="v")
E = tf.Variable(tf.reshape(tf.range(12.0), (4, 3)) / 5.0, name="embedding")
SCALES = [0.5, 1.0, 1.5, 2.0, 2.5]
COMPILED = [FIRST, FIRST, None, None, None]


def recorded(scale: float):
    with rt.Tape() as tape:
        y = tf.sin(W * scale) * V
        loss = tf.reduce_sum(y**2)
    return tape, y, loss


QUERIES = {
    "gradient": lambda tape, y, loss: tape.gradient(loss, [W, V]),
    "gradient of one": lambda tape, y, loss: tape.gradient(loss, W),
    "a dictionary": lambda tape, y, loss: tape.gradient(loss, {"a": W, "b": [V]}),
    "of a tensor on the way": lambda tape, y, loss: tape.gradient(loss, [y, W]),
    "of several targets": lambda tape, y, loss: tape.gradient([loss, y], [W, V]),
    "not connected": lambda tape, y, loss: tape.gradient(y, [W, E, V], unconnected_gradients="none"),
    "zeros": lambda tape, y, loss: tape.gradient(y, [W, E], unconnected_gradients="zero"),
    "backward": lambda tape, y, loss: list(tape.backward(loss, [W, V]).values()),
    "backward_each": lambda tape, y, loss: [list(g.values()) for g in tape.backward_each([loss, y], [W, V])],
    "elements of a vector": lambda tape, y, loss: [list(g.values()) for g in tape.backward_each(y, [W, V])],
    "hvp": lambda tape, y, loss: tape.hvp(loss, [W, V], [tf.ones(3), tf.range(3.0)]),
    "jvp": lambda tape, y, loss: tape.jvp(y, [W, V], [tf.ones(3), tf.range(3.0)]),
    "vjp": lambda tape, y, loss: tape.vjp(y, [W, V], tf.range(3.0)),
    "through updates": lambda tape, y, loss: tape.gradient(loss, [W, V], through_updates=True),
}


@pytest.mark.parametrize("name", list(QUERIES))
def test_it_gives_the_bits_of_op_by_op(name: str):
    def step(scale):
        tape, y, loss = recorded(scale)
        return tape, QUERIES[name](tape, y, loss)

    assert reasons(step, *SCALES) == COMPILED


@pytest.mark.parametrize("name", ["jacobian", "of a scalar", "hessian", "per_example"])
def test_rows_give_the_same_but_for_rounding(name: str):
    def step(scale):
        with rt.Tape() as tape:
            y = tf.sin(E * scale) @ tf.reshape(W, (3, 1)) * V
            rows = tf.reduce_sum(y, 1)
            loss = tf.reduce_sum(y**2)
        query = {
            "jacobian": lambda: tape.jacobian(y, [E, W]),
            "of a scalar": lambda: tape.jacobian(loss, W),
            "hessian": lambda: tape.hessian(loss, W),
            "per_example": lambda: tape.per_example(rows, [W]),
        }[name]
        return tape, query()

    for scale in SCALES:
        tape, ours = step(scale)
        with rt.config(compile=False):
            _, theirs = step(scale)
        for one, other in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert tape.why_not_compiled() is None


# ------------------------------------------------------------------ seeds


def test_seeds_are_arguments():
    def step(seed):
        tape, y, _ = recorded(1.0)
        return tape, tape.gradient(y, [W, V], output_gradients=seed)

    assert reasons(step, *(tf.range(3.0) * scale for scale in SCALES)) == COMPILED


def test_the_same_seed_twice_is_not_two_seeds():
    def step(seeds):
        with rt.Tape() as tape:
            y, z = tf.sin(W), tf.cos(W)
        return tape, tape.gradient([y, z], [W], output_gradients=list(seeds))

    one, other = tf.range(3.0), tf.ones(3)
    reasons(step, (one, one), (one, one), (one, one), (one, other), (one, other), (one, other), (other, one))


def test_a_seed_that_is_a_tensor_of_the_tape_is_told_from_others():
    def step(which):
        with rt.Tape() as tape:
            y = tf.sin(W)
            z = y * V
        seed = {"y": y, "z": z, "other": tf.ones(3)}[which]
        return tape, tape.gradient(z, [W, V], output_gradients=seed)

    reasons(step, "y", "y", "y", "z", "z", "z", "other", "other", "other", "y", "z", "other")


def test_a_seed_that_is_returned_is_the_same_value():
    def step(seed):
        with rt.Tape() as tape:
            y = tf.identity(W)
        return tape, tape.gradient(y, [W], output_gradients=seed)

    reasons(step, *(tf.range(3.0) * scale for scale in SCALES))


def test_seeds_of_another_shape_or_type_are_other_queries():
    def step(kind):
        given = tf.cast(tf.ones(3), kind)
        with rt.Tape() as tape:
            y = tf.cast(W, kind) * given
        return tape, tape.gradient(y, [W], output_gradients=given)

    reasons(step, tf.float32, tf.float32, tf.float32, tf.float64, tf.float64, tf.float64, tf.float32)


# ------------------------------------------------------------------ results


def test_sparse_gradients_stay_sparse():
    def step(rows):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.gather(E, rows) ** 2)
        (found,) = tape.gradient(loss, [E])
        assert isinstance(found, tf.IndexedSlices)
        return tape, [found]

    assert reasons(step, [0, 1], [1, 1], [3, 0], [2, 2], [1, 0]) == COMPILED


def test_a_sum_of_sparse_and_dense_gradients():
    def step(rows):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.gather(E, rows) ** 2) + tf.reduce_sum(tf.sin(E))
        return tape, tape.gradient(loss, [E])

    reasons(step, [0, 1], [1, 1], [3, 0], [2, 2], [1, 0])


def test_a_source_that_is_connected_only_sometimes():
    def step(used):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(W * (V if used else 2.0))
        return tape, tape.gradient(loss, [W, V])

    reasons(step, True, True, True, False, False, False, True, False)


def test_what_is_missing_says_why_on_every_step():
    for _ in range(5):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.round(W) * V)
        found = tape.backward(loss, [W, V])
        assert "Round" in found.why(W)
        np.testing.assert_array_equal(found[V], tf.round(W))


def test_results_can_be_differentiated_again():
    def step(scale):
        tape, _, loss = recorded(scale)
        first = tape.gradient(loss, W)
        return tape, [first, tape.gradient(first, [W, V]), tape.gradient(tape.gradient(first, W), V)]

    reasons(step, *SCALES)


def test_double_precision_complex_and_half():
    some = [tf.Variable(tf.cast([1.0, 2.0], kind)) for kind in (tf.float64, tf.complex64, tf.bfloat16, tf.float16)]

    def step(_):
        with rt.Tape() as tape:
            losses = [tf.reduce_sum(variable * variable * variable) for variable in some]
        return tape, [tape.gradient(loss, [variable]) for loss, variable in zip(losses, some, strict=True)]

    assert reasons(step, *SCALES) == COMPILED


# ------------------------------------------------------------------ tapes of every origin


@pytest.mark.parametrize("values", ["leaves", "needed", "all"])
def test_queries_on_a_loaded_tape_are_compiled(tmp_path: Path, values: str):
    net, data = dense_net(), batch()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(net(data) ** 2)
    want = tape.gradient(loss, [data, *net.trainable_variables])
    tape.save(tmp_path / "a.tape", {"loss": loss, "data": data}, values=values)
    loaded = rt.load(tmp_path / "a.tape")
    texts = []
    for _ in range(4):
        found = loaded.gradient("loss", ["data"])
        texts.append(loaded.why_not_compiled())
        np.testing.assert_array_equal(found[0], want[0])
    assert texts == [FIRST, FIRST, None, None]


def test_functions_of_a_loaded_tape_belong_to_it_alone(tmp_path: Path):
    """The ops of a file are checked on its values."""
    x = tf.constant([1.0, 2.0])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.sin(x))
    tape.save(tmp_path / "a.tape", {"loss": loss, "x": x})
    one, other = rt.load(tmp_path / "a.tape"), rt.load(tmp_path / "a.tape")
    for _ in range(3):
        one.gradient("loss", "x")
    other.gradient("loss", "x")
    assert (one.why_not_compiled(), other.why_not_compiled()) == (None, FIRST)


def test_joined_and_replayed_tapes_give_the_same():
    def step(scale):
        x = tf.ones(3) * scale
        with rt.Tape() as first:
            y = tf.sin(x * W)
        with rt.Tape() as second:
            loss = tf.reduce_sum(y**2)
        joined = rt.join(first, second)
        found = joined.gradient(loss, [W, x])
        again = joined.replay([(x, x * 2.0)])
        return joined, [*found, *again.gradient(loss, [W, x])]

    reasons(step, *SCALES)


def test_a_keras_model_with_batch_normalization_and_dropout():
    keras.utils.set_random_seed(3)
    layers = keras.layers
    net = keras.Sequential([layers.Dense(6, "gelu"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)])
    net.build((None, 3))
    data = batch(8)
    for _ in range(5):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(net(data, training=True) ** 2)
        ours = tape.gradient(loss, net.trainable_variables)
        texts = tape.why_not_compiled()
        with rt.config(compile=False):
            assert_same(ours, tape.gradient(loss, net.trainable_variables))
    assert texts is None
