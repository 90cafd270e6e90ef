"""What a report finds wrong, and what it must not find wrong."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from report.making import batch, transformer

NORMAL = tf.random.stateless_normal([32, 16], [1, 2])


def kinds(report: Any) -> list[str]:
    return [one.kind for one in report.findings]


def deep(activation: str, init: Any, layers: int = 14) -> Any:
    keras.utils.set_random_seed(1)
    names = [f"d{number}" for number in range(layers)]
    model = keras.Sequential(
        [keras.layers.Dense(32, activation, kernel_initializer=init, name=name) for name in names], name="deep"
    )
    with rt.Tape() as tape:
        loss = tf.reduce_mean(model(NORMAL) ** 2)
    return tape.report(loss=loss)


# ------------------------------------------------------------------ vanishing


def test_vanishing_gradients():
    report = deep("sigmoid", "glorot_uniform")
    (finding,) = report.findings
    assert (finding.kind, finding.severity) == ("vanishing", "warning")
    assert finding.names == tuple(f"deep/d{number}" for number in range(5))
    assert [report.places[place].name for place in finding.places] == list(finding.names)
    assert finding.sentence.startswith(
        "The gradient with respect to their weights is less than 1e-05 of that of a layer"
    )
    assert "residual connections" in finding.remedy
    norms = {one.name: one.gradient.norm for one in report.weights}
    assert max(norms["deep/d4/kernel"], norms["deep/d4/bias"]) < 1e-5 * max(norms.values())


def test_a_deep_net_that_is_well_initialized_is_not_flagged():
    assert deep("relu", "he_normal").findings == ()


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_the_bias_of_keys_is_not_flagged(blocks, seed):
    """Its gradient is zero in exact arithmetic: softmax ignores what is added to all keys."""
    model = transformer(blocks, width=32)
    keras.utils.set_random_seed(seed)
    for weight in model.trainable_variables:
        weight.assign(keras.random.normal(weight.shape, stddev=0.3))
    with rt.Tape() as tape:
        loss = tf.reduce_mean(model(batch()[0]) ** 2)
    report = tape.report(loss=loss)
    states = {one.name: one.state for one in report.weights}
    keys = [f"block{number}/attention/key/bias" for number in range(blocks)]
    assert [name for name, state in states.items() if state == "rounding"] == keys
    norms = {one.name: one.gradient.norm for one in report.weights}
    assert all(norms[name] < 1e-3 * norms[name.replace("key", "query")] for name in keys)
    assert "vanishing" not in kinds(report)


@pytest.mark.parametrize("dtype", ["float64", "mixed_bfloat16", "mixed_float16"])
def test_rounding_errors_in_other_dtypes(dtype):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        model = transformer(1)
        with rt.Tape() as tape:
            loss = tf.reduce_mean(tf.cast(model(batch()[0]), tf.float32) ** 2)
    finally:
        keras.config.set_dtype_policy(before)
    states = {one.name: one.state for one in tape.report(loss=loss).weights}
    assert states.pop("block0/attention/key/bias") in ("rounding", "zero")
    assert "rounding" not in states.values()


def test_a_key_bias_alone_in_its_layer_is_not_flagged():
    """By layer, it could not hide behind a kernel."""
    bias, query = tf.Variable(tf.ones([4]), name="bias"), tf.Variable(tf.ones([4]), name="query")
    keys = tf.random.stateless_normal([2, 8, 4], [3, 4])

    class Key(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x + bias

    class Query(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * query

    with rt.Tape() as tape:
        scores = tf.matmul(Query(name="q")(keys), Key(name="k")(keys), transpose_b=True)
        loss = tf.reduce_sum((tf.nn.softmax(scores) @ keys) ** 2)
    report = tape.report(loss=loss)
    assert {one.name: one.state for one in report.weights} == {"bias": "rounding", "query": "ok"}
    assert report.findings == ()


def test_a_small_gradient_without_cancellation_is_flagged():
    first, second = (tf.Variable(tf.ones([4, 4]), name=f"{name}/kernel") for name in ("first", "second"))
    x = tf.random.stateless_normal([8, 4], [5, 6])
    with rt.Tape() as tape:
        hidden = x @ first
        loss = tf.reduce_sum(hidden * 1e-7) + tf.reduce_sum(x @ second)
    report = tape.report(loss=loss)
    assert {one.state for one in report.weights} == {"ok"}
    assert kinds(report) == ["vanishing"]


def test_vanishing_along_a_sequence():
    keras.utils.set_random_seed(1)
    shrinking = keras.initializers.Orthogonal(gain=0.5)
    rnn = keras.layers.SimpleRNN(8, recurrent_initializer=shrinking, name="rnn")
    x = tf.random.stateless_normal([4, 40, 3], [1, 2])
    with rt.Tape() as tape:
        loss = tf.reduce_mean(rnn(x) ** 2)
    (finding,) = tape.report(loss=loss).findings
    assert finding.title == "Vanishing gradient along 40 calls of a layer"
    assert finding.names == ("rnn/simple_rnn_cell",)
    assert "LSTM" in finding.remedy


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_vanishing_in_a_cell_that_has_gates(kind):
    keras.utils.set_random_seed(1)
    options = {"unit_forget_bias": False} if kind == "LSTM" else {}
    layer = getattr(keras.layers, kind)(8, name="rnn", **options)
    with rt.Tape() as tape:
        loss = tf.reduce_mean(layer(tf.random.stateless_normal([4, 60, 3], [1, 2])) ** 2)
    (finding,) = tape.report(loss=loss).findings
    assert finding.title == "Vanishing gradient along 60 calls of a layer"
    assert "Use a gated cell" not in finding.remedy
    assert "bias of the forget gate" in finding.remedy


def test_a_head_that_has_learned_its_task_says_nothing_of_the_other():
    keras.utils.set_random_seed(0)
    body = keras.Sequential([keras.layers.Dense(32, "tanh", name=name) for name in ("one", "two")])
    price, done = keras.layers.Dense(1, name="price"), keras.layers.Dense(1, name="done")
    with rt.Tape() as tape:
        hidden = body(NORMAL)
        wrong, right = price(hidden) - 1.0, done(hidden)
        loss = tf.reduce_mean(wrong**2) + tf.reduce_mean((right - (right.numpy() + 1e-6)) ** 2)
    assert tape.report(loss=loss).findings == ()


# ------------------------------------------------------------------ the others


def test_exploding_gradients():
    report = deep("linear", keras.initializers.RandomNormal(stddev=2.0))
    (finding,) = report.findings
    assert finding.kind == "exploding"
    assert finding.names[0] == "deep/d0"
    assert "deep/d13" not in finding.names
    assert "grads.clip(global_norm=1.0)" in finding.remedy


def test_nan():
    dense = keras.layers.Dense(2, name="dense")
    with rt.Tape() as tape:
        loss = tf.reduce_mean(tf.math.log(dense(tf.ones([3, 2])) * 0.0))
    report = tape.report(loss=loss)
    finding = report.findings[0]
    assert (finding.kind, finding.severity) == ("nan", "error")
    assert finding.sentence == "Log produced the first value that is not finite. The log of zero is -inf."
    assert finding.line.code == "loss = tf.reduce_mean(tf.math.log(dense(tf.ones([3, 2])) * 0.0))"
    assert finding.remedy == tape.first_nonfinite(loss).remedy
    assert report.losses[0].value == -np.inf


def test_nan_in_the_backward_pass_alone():
    w = tf.Variable([0.0, 1.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.sqrt(w))
    report = tape.report(loss=loss)
    assert report.findings[0].sentence.startswith("The gradient of Sqrt produced the first value that is not finite.")
    assert report.weights[0].state == "nonfinite"
    assert report.weights[0].gradient.nonfinite == 1


def test_nan_everywhere():
    dense = keras.layers.Dense(2, name="dense")
    with rt.Tape() as tape:
        loss = tf.reduce_mean(dense(tf.fill([3, 2], np.nan)))
    report = tape.report(loss=loss)
    assert kinds(report)[0] == "nan"
    assert not {"vanishing", "exploding"} & set(kinds(report))
    assert {one.forward.nonfinite for one in report.flow} == {6, 1}


def test_without_a_gradient():
    used, cut, unused = (tf.Variable([1.0], name=name) for name in ("used", "cut", "unused"))
    with rt.Tape() as tape:
        loss = tf.reduce_sum(used * tf.stop_gradient(cut))
        unused * 2.0
    report = tape.report(loss=loss)
    first, second = report.findings
    assert (first.kind, first.severity, first.names) == ("none", "error", ("cut",))
    assert first.sentence == "The gradient is None. `tf.stop_gradient` cuts the path."
    assert first.line.code == "loss = tf.reduce_sum(used * tf.stop_gradient(cut))"
    assert first.remedy == tape.why(loss, cut).verdict.remedy
    assert second.names == ("unused",)
    assert "no recorded op connects the source to the target" in second.sentence
    assert {one.name: one.state for one in report.weights} == {"used": "ok", "cut": "none", "unused": "none"}


def test_many_reasons_are_grouped():
    cut = [tf.Variable([1.0], name=f"cut{number}") for number in range(9)]
    kept = tf.Variable([1.0], name="kept")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(kept * tf.stop_gradient(tf.add_n(cut)))
    (finding,) = tape.report(loss=loss).findings
    assert finding.title == "No gradient: 9 variables"
    assert finding.names == tuple(f"cut{number}" for number in range(9))


def test_a_gradient_of_zero():
    w, v = tf.Variable([1.0, 2.0], name="w"), tf.Variable(1.0, name="v")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * 0.0) + v
    (finding,) = tape.report(loss=loss).findings
    assert (finding.kind, finding.names) == ("zero", ("w",))
    assert finding.detail.startswith("It is multiplied by zeros")
    assert finding.line.code == "loss = tf.reduce_sum(w * 0.0) + v"


def test_what_does_not_lead_to_the_loss_is_not_called_fine():
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w)
        tf.math.log(tf.zeros([2]))
    report = tape.report(loss=loss)
    assert report.findings == ()
    assert "nothing wrong was found in what leads to the loss; checked: NaN and infinities" in str(report)
    assert "Nothing wrong was found in what leads to the loss" in report.html()
    assert "in what leads to the losses" in str(tape.report(losses=[loss, loss]))


def test_without_a_loss_the_whole_tape_is_searched():
    with rt.Tape() as tape:
        fine = tf.math.log(tf.ones([2]))
    assert "nothing wrong was found on the tape; checked: NaN" in str(tape.report())
    with rt.Tape() as tape:
        tf.math.log(fine)
    (finding,) = tape.report().findings
    assert finding.sentence.startswith("Log produced the first value that is not finite.")


def test_dead_units():
    bias = keras.initializers.Constant([-100.0] * 24 + [0.0] * 8)
    dead = keras.layers.Dense(32, "relu", bias_initializer=bias, name="dead")
    with rt.Tape() as tape:
        loss = tf.reduce_mean(dead(NORMAL))
    (finding,) = tape.report(loss=loss).findings
    assert (finding.kind, finding.names) == ("dead", ("dead",))
    assert finding.detail == "24 of 32 at dead."


def test_a_batch_that_is_too_small_has_no_dead_units():
    bias = keras.initializers.Constant(-100.0)
    dense = keras.layers.Dense(4, "relu", bias_initializer=bias)
    other = tf.Variable(1.0)
    with rt.Tape() as tape:
        loss = tf.reduce_mean(dense(NORMAL[:4])) + other
    assert "dead" not in kinds(tape.report(loss=loss))


def test_losses_with_variables_of_their_own_are_not_in_conflict():
    """Those of generator and discriminator are made to oppose each other."""
    w, v = tf.Variable([1.0, 2.0], name="w"), tf.Variable([2.0, 1.0], name="v")
    with rt.Tape() as tape:
        score = tf.reduce_sum(w * v)
        losses = {"generator": -score, "discriminator": score * 2.0}
        if_asked = [tape.gradient(losses["generator"], [w]), tape.gradient(losses["discriminator"], [v])]
    for _ in range(2):  # what a report asks for itself does not count
        assert "conflict" not in kinds(tape.report(losses=losses))
    both = tape.gradient(losses["discriminator"], [v, w])
    assert "conflict" in kinds(tape.report(losses=losses))
    del if_asked, both


def test_what_was_asked_before_a_reset_does_not_count():
    w, v = tf.Variable([1.0, 2.0], name="w"), tf.Variable([2.0, 1.0], name="v")
    tape = rt.Tape()
    for ask in (True, False):
        with tape:
            score = tf.reduce_sum(w * v)
            losses = {"first": -score, "second": score * 2.0}
        kept = [tape.gradient(losses["first"], [w]), tape.gradient(losses["second"], [v])] if ask else []
        assert ("conflict" in kinds(tape.report(losses=losses))) == (not ask)
        tape.reset()
        del kept


def test_losses_in_conflict():
    shared, own = tf.Variable([1.0, 2.0], name="shared"), tf.Variable([1.0], name="own")
    with rt.Tape() as tape:
        first = tf.reduce_sum((shared - 3.0) ** 2)
        second = tf.reduce_sum((shared + 3.0) ** 2) + tf.reduce_sum(own)
        third = tf.reduce_sum((shared - 4.0) ** 2)
    report = tape.report(losses={"a": first, "b": second, "c": third})
    assert [one.title for one in report.findings] == ["Conflict: a and b", "Conflict: b and c"]
    found = {(one.first, one.second): one.value for one in report.cosines}
    g = [2.0 * (shared.numpy() + shift) for shift in (-3.0, 3.0, -4.0)]
    rows = np.stack([np.append(g[0], 0.0), np.append(g[1], 1.0), np.append(g[2], 0.0)])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert found[("a", "b")] == pytest.approx(rows[0] @ rows[1], rel=1e-5)
    assert found[("a", "c")] == pytest.approx(rows[0] @ rows[2], rel=1e-5)
    assert "tape.backward_each(losses)" in report.findings[0].remedy
    assert "conflicts between losses" in report.checks


def test_losses_that_agree():
    w = tf.Variable([1.0, 2.0], name="w")
    with rt.Tape() as tape:
        losses = [tf.reduce_sum(w**2), tf.reduce_sum(w**4)]
    assert tape.report(losses=losses).findings == ()
