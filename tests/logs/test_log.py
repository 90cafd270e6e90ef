"""What `tape.log` writes, as TensorBoard's own reader finds it."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from logs.steps import X, recorded
from retrotape.errors import GuessedLossWarning


def test_scalars_histograms_and_a_graph(model, writer, read):
    tape, loss = recorded(model)
    grads = tape.log(writer, 7, loss)
    logs = read()
    assert logs.number("loss") == pytest.approx(float(loss))
    for name, value in grads.metrics().items():
        assert logs.number(name) == pytest.approx(value)
    for variable in model.trainable_variables:
        assert logs.count(f"gradients/{variable.path}/values") == np.prod(variable.shape)
        assert logs.number(f"gradients/{variable.path}/nonfinite") == 0.0
        least, largest = logs.range(f"gradients/{variable.path}/values")
        grad = tape.gradient(loss, variable).numpy()
        assert (least, largest) == (pytest.approx(grad.min()), pytest.approx(grad.max()))
    hidden = tf.nn.relu(X @ model.layers[0].kernel + model.layers[0].bias)
    assert logs.number("activations/net/hidden/norm") == pytest.approx(float(tf.norm(hidden)), rel=1e-6)
    assert logs.count("activations/net/hidden/values") == 24
    assert logs.count("activations/net/values") == 8
    assert logs.steps("loss") == [7]
    assert "findings" not in logs.tags


def test_what_is_returned_is_the_gradient(model, writer):
    tape, loss = recorded(model)
    grads = tape.log(writer, 0, loss)
    with tf.GradientTape() as stock:
        value = tf.reduce_mean(model(X) ** 2)
    for variable, expected in zip(
        model.trainable_variables, stock.gradient(value, model.trainable_variables), strict=True
    ):
        np.testing.assert_array_equal(grads[variable], expected)


def test_tags_of_a_layer_called_norm_do_not_collide(writer, read):
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.norm = keras.layers.LayerNormalization(name="norm")
            self.values = keras.layers.Dense(2, name="values")

        def call(self, x):
            return self.values(self.norm(x))

    block = Block()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(block(X) ** 2)
    tape.log(writer, 0, loss)
    logs = read()
    assert logs.plugin("activations/block/norm") == "scalars"
    assert logs.plugin("activations/block/norm/norm") == "scalars"
    assert logs.plugin("activations/block/norm/values") == "histograms"
    assert logs.plugin("activations/block/values") == "histograms"
    assert logs.plugin("activations/block/values/values") == "histograms"


def test_a_layer_that_is_called_twice(writer, read):
    layer = keras.layers.Dense(4, name="shared")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(layer(layer(X)))
    tape.log(writer, 0, loss)
    logs = read()
    once, twice = layer(X), layer(layer(X))
    assert logs.number("activations/shared/norm") == pytest.approx(float(tf.norm(once)), rel=1e-6)
    assert logs.number("activations/shared/call_2/norm") == pytest.approx(float(tf.norm(twice)), rel=1e-6)


def test_nothing_is_recorded_inside_an_open_block(model, writer):
    with rt.Tape() as outer, rt.Tape() as tape:
        loss = tf.reduce_mean(model(X) ** 2)
        counts = len(tape.program.eqns), len(outer.program.eqns)
        tape.log(writer, 0, loss)
        assert (len(tape.program.eqns), len(outer.program.eqns)) == counts
        after = loss * 2.0
    assert len(tape.program.eqns) == counts[0] + 1
    assert float(tape.gradient(after, loss)) == 2.0


def test_inside_a_pause(model, writer, read):
    with rt.Tape() as tape:
        loss = tf.reduce_mean(model(X) ** 2)
        with tape.stop_recording():
            tape.log(writer, 3, loss)
    assert read().steps("loss") == [3]


def test_the_default_loss_is_the_scalar_that_no_op_used(writer, read):
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w**2) + tf.reduce_sum(w * 0.5)
        _ = w * 3.0  # no scalar
        _ = tf.size(w)  # no floating-point number
    grads = tape.log(writer, 0)
    logs = read()
    assert logs.number("loss") == float(loss)
    assert grads[w].numpy().tolist() == [2.5, 4.5]
    assert logs.description("loss").startswith("AddV2 at ")
    assert logs.description("loss").endswith(
        ", the last scalar that no op used and that depends on a trainable variable"
    )


def test_of_several_scalars_it_is_the_last_with_a_warning(writer, read):
    """One that does not depend on the variable is none of them."""
    w = tf.Variable(2.0, name="w")
    with rt.Tape() as tape:
        w * w * w
        last = w * 3.0
        tf.constant(3.0) * 2.0
    text = r"Took \w+ at .*test_log.py:\d+ for the loss, the last of 2 scalars .*`tape.log\(writer, step, loss\)`"
    with pytest.warns(GuessedLossWarning, match=text) as caught:
        tape.log(writer, 0)
    assert caught[0].filename == __file__
    assert read().number("loss") == float(last)


def test_the_default_loss_of_a_loaded_tape_is_its_name(writer, read, tmp_path_factory):
    w = tf.Variable([3.0, 4.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w**2)
        _ = tf.reduce_sum(w) * 100.0  # later, and not used either
    path = tmp_path_factory.mktemp("tapes") / "a.tape"
    tape.save(path, loss=loss)
    grads = rt.load(path).log(writer, 0)
    assert float(grads.norm()) == 10.0
    assert read().number("gradients/w/norm") == 10.0


def test_a_replay_logs_its_own_values(writer, read):
    w, x = tf.Variable(2.0, name="w"), tf.constant(3.0)
    with rt.Tape() as tape:
        loss = w * x
    tape.replay([(x, 5.0)]).log(writer, 0, loss)
    logs = read()
    assert (logs.number("loss"), logs.number("gradients/w/norm")) == (10.0, 5.0)


def test_a_joined_tape(writer, read):
    w = tf.Variable(2.0, name="w")
    with rt.Tape() as first:
        y = w * w
    with rt.Tape() as second:
        z = y * 3.0
    rt.join(first, second).log(writer, 0, z)
    assert read().number("gradients/w/norm") == 12.0


def test_several_losses_are_summed_as_in_a_gradient(writer, read):
    w = tf.Variable(2.0, name="w")
    with rt.Tape() as tape:
        losses = [w * 3.0, {"b": w * tf.constant([1.0, 1.0])}]
    tape.log(writer, 0, losses)
    logs = read()
    assert (logs.number("loss"), logs.number("gradients/w/norm")) == (10.0, 5.0)


def test_names_as_losses(writer, read, tmp_path_factory):
    w = tf.Variable(2.0, name="w")
    with rt.Tape() as tape:
        a, b = w * 3.0, w * w
    path = tmp_path_factory.mktemp("tapes") / "a.tape"
    tape.save(path, a=a, b=b)
    rt.load(path).log(writer, 0, ["a", "b"])
    logs = read()
    assert (logs.number("loss"), logs.number("gradients/w/norm")) == (10.0, 7.0)


def test_values_that_were_not_kept_are_recomputed(model, writer, read):
    with rt.Tape(keep="leaves") as tape:
        loss = tf.reduce_mean(model(X) ** 2)
    tape.log(writer, 0, loss)
    assert read().count("activations/net/hidden/values") == 24


# ------------------------------------------------------------------ numbers that are none


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_histogram_of_the_finite_part_and_a_count(dtype, writer, read):
    w = tf.Variable(tf.ones([5], dtype), name="w")
    factors = tf.constant([1.0, 2.0, math.inf, -math.inf, math.nan], dtype)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * factors)
    tape.log(writer, 0, loss)
    logs = read()
    assert logs.count("gradients/w/values") == 2
    assert logs.range("gradients/w/values") == (1.0, 2.0)
    assert logs.number("gradients/w/nonfinite") == logs.number("gradients/nonfinite") == 3.0


def test_nothing_finite_has_no_histogram(writer, read):
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * math.inf)
    tape.log(writer, 0, loss)
    logs = read()
    assert "gradients/w/values" not in logs.tags
    assert logs.number("gradients/w/nonfinite") == 2.0


def test_complex_values_are_logged_by_magnitude(writer, read):
    w = tf.Variable([3.0 + 4.0j], dtype=tf.complex64, name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.abs(w) ** 2)
    tape.log(writer, 0, loss)
    assert read().range("gradients/w/values") == (pytest.approx(10.0), pytest.approx(10.0))


def test_sparse_gradients(writer, read):
    table = tf.Variable(tf.ones([6, 2]), name="table")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 4, 1]))
    tape.log(writer, 0, loss)
    logs = read()
    assert logs.count("gradients/table/values") == 4  # the rows that it has, repeated ones summed
    assert logs.range("gradients/table/values") == (1.0, 2.0)
