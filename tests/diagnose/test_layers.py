"""Every Keras layer is known by its name: without weights, inside of models, and each call of a shared one."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import retrotape as rt
from retrotape import errors
from retrotape.diagnose.layers import Layers

IMAGE = tf.random.stateless_uniform([2, 8, 8, 3], [1, 2])
NAMES = ("conv_a", "bn_a", "conv5_block3_out", "pool5", "drop", "gap", "predictions")


@pytest.fixture(scope="module")
def resnet() -> keras.Model:
    keras.utils.set_random_seed(2)
    given = keras.Input([8, 8, 3])
    h = layers.Conv2D(4, 3, padding="same", name="conv_a")(given)
    h = layers.BatchNormalization(name="bn_a")(h)
    h = layers.Activation("relu", name="conv5_block3_out")(h)
    h = layers.MaxPooling2D(name="pool5")(h)
    h = layers.Dropout(0.5, name="drop")(h)
    h = layers.GlobalAveragePooling2D(name="gap")(h)
    return keras.Model(given, layers.Dense(3, name="predictions")(h), name="resnet")


@pytest.mark.parametrize("keep", ["needed", "leaves", "segments"])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_layer_returned_and_its_gradient(resnet: keras.Model, name: str, keep: Any) -> None:
    with rt.Tape(keep=keep) as tape:
        score = resnet(IMAGE)[:, 1]
    found = tape.tensors(layer=name)[-1]
    both = keras.Model(resnet.inputs, [resnet.get_layer(name).output, resnet.outputs[0]])
    with tf.GradientTape() as stock:
        known, out = both(IMAGE)
        other = out[:, 1]
    expected = stock.gradient(other, known)
    np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(score, found), expected, rtol=1e-5, atol=1e-6)


def test_each_op_belongs_to_the_layer_that_ran_it(resnet: keras.Model) -> None:
    with rt.Tape() as tape:
        doubled = resnet(IMAGE) * 2.0
    by_layer = {row.layer: row.ops for row in tape.summary().rows}
    assert set(by_layer) == {f"resnet/{name}" for name in NAMES if name != "drop"} | {""}
    assert by_layer["resnet/conv5_block3_out"] == {"Relu": 1}
    assert by_layer["resnet/pool5"] == {"MaxPool": 1}
    assert {"StridedSlice", "Mul"} >= set(by_layer[""])  # on the line of the model, but after it
    assert doubled.shape == (2, 3)


def test_merging_layers_have_their_tensors() -> None:
    given = keras.Input([3])
    left, right = layers.Dense(2, name="left")(given), layers.Dense(2, name="right")(given)
    model = keras.Model(given, layers.Add(name="sum")([left, right]))
    with rt.Tape() as tape:
        y = model(tf.ones([1, 3]))
    np.testing.assert_allclose(tape.tensors(layer="sum")[-1], y)


class Block(layers.Layer):
    def __init__(self) -> None:
        super().__init__(name="block")
        self.inner = layers.Dense(2, name="inner")

    def call(self, x: Any) -> Any:
        return tf.sin(self.inner(x)) + 1.0


def test_models_and_layers_inside_of_models() -> None:
    inside = keras.Sequential([Block(), layers.ReLU(name="last")], name="encoder")
    outside = keras.Sequential([inside, layers.Dense(1, name="head")], name="whole")
    with rt.Tape() as tape:
        outside(tf.ones([1, 3]))
    layer_of = {one.op: one.layer for one in tape.tensors(layer="block").found}
    assert layer_of["MatMul"] == "whole/encoder/block/inner"
    assert layer_of["Sin"] == layer_of["AddV2"] == "whole/encoder/block"
    assert {one.layer for one in tape.tensors(layer="encoder").found} == {
        "whole/encoder/block/inner",
        "whole/encoder/block",
        "whole/encoder/last",
    }
    assert len(tape.tensors(layer="encoder/last")) == len(tape.tensors(layer="whole/encoder/last")) == 1


def test_which_call_of_a_shared_layer() -> None:
    shared = keras.Sequential([layers.Dense(2, name="dense"), layers.Activation("tanh", name="act")], name="tower")
    first, second = tf.ones([1, 3]), -tf.ones([1, 3])
    with rt.Tape() as tape:
        a, b = shared(first), shared(second)
        distance = tf.reduce_sum((a - b) ** 2)
    assert [float(one[0, 0]) for one in tape.tensors(layer="act", op="Tanh")] == [float(a[0, 0]), float(b[0, 0])]
    assert tape.tensors(layer="act", call=2)[-1] is b
    assert tape.tensors(layer="tower", call=1)[-1] is a  # also by the layer that called it
    assert [one.call for one in tape.tensors(layer="act", op="Tanh").found] == [1, 2]
    assert "tower/act, call 2" in repr(tape.tensors(layer="act"))
    np.testing.assert_allclose(
        tape.gradient(distance, tape.tensors(layer="act", call=2)[-1]), -2.0 * (a - b), rtol=1e-6
    )
    row = next(row for row in tape.summary().rows if row.layer == "tower/act")
    assert row.calls == 2
    assert "tower/act, 2 calls" in str(tape.summary())


def test_an_unknown_name_lists_near_ones(resnet: keras.Model) -> None:
    with rt.Tape() as tape:
        resnet(IMAGE)
    with pytest.raises(errors.UnknownLayerError) as caught:
        tape.tensors(layer="conv5_block3")
    assert str(caught.value) == (
        "This tape has no layer 'conv5_block3'. Did you mean 'resnet/conv5_block3_out'? "
        "`print(tape.summary())` shows all that ran."
    )
    assert caught.value.near == ("resnet/conv5_block3_out",)
    with pytest.raises(
        errors.UnknownLayerError, match=r"'xyz'\. Its layers are 'resnet', 'resnet/conv_a', 'resnet/bn_a'"
    ):
        tape.tensors(layer="xyz")
    with rt.Tape() as empty:
        tf.sin(1.0)
    with pytest.raises(errors.UnknownLayerError, match=r"no layer 'dense'\. Its layers are none\."):
        empty.tensors(layer="dense")


def test_a_call_that_never_was(resnet: keras.Model) -> None:
    with rt.Tape() as tape:
        resnet(IMAGE)
    with pytest.raises(ValueError, match=r"^The layer 'gap' was called 1 time on this tape, got call=2\.$"):
        tape.tensors(layer="gap", call=2)
    with pytest.raises(
        ValueError, match=r"^call= selects a call of a layer, got call=2 without layer=; pass layer= too\.$"
    ):
        tape.tensors(op="Relu", call=2)


def test_variables_that_are_named_like_keras_still_tell() -> None:
    w, dense = tf.Variable([[2.0]], name="mine/w"), layers.Dense(1, name="dense")
    with rt.Tape() as tape:
        tf.nn.relu(dense(tf.ones([1, 1])) @ w)
    assert [one.layer for one in tape.tensors(op="MatMul").found] == ["dense", "mine"]
    assert [one.layer for one in tape.tensors(op="Relu").found] == ["mine"]
    with pytest.raises(ValueError, match=r"^The layer 'mine' was called outside Keras on this tape, got call=1\.$"):
        tape.tensors(layer="mine", call=1)


def test_a_layer_that_fails_and_a_pause() -> None:
    dense = layers.Dense(2, name="dense")
    dense(tf.ones([1, 3]))
    with rt.Tape() as tape:
        with pytest.raises(ValueError, match="incompatible"):
            dense(tf.ones([1, 4]))
        with tape.stop_recording():
            dense(tf.ones([1, 3]))
        tf.sin(1.0)
        y = dense(tf.ones([1, 3]))
    assert [one.layer for one in tape.tensors(op="Sin").found] == [""]
    np.testing.assert_array_equal(tape.tensors(layer="dense", call=1)[-1], y)


def test_inside_of_a_layer_that_is_being_called() -> None:
    found = []

    class Asking(layers.Layer):
        def call(self, x: Any) -> Any:
            with rt.Tape() as tape:
                y = tf.sin(x)
            found.append((tape, [one.layer for one in outer.tensors(op="Sin").found]))
            return y

    with rt.Tape() as outer:
        Asking(name="asking")(tf.ones([2]))
    assert found[0][1] == ["asking"]
    assert [one.layer for one in found[0][0].tensors(op="Sin").found] == ["asking"]


def test_files_joins_and_replays_know_the_same_layers(resnet: keras.Model, tmp_path: Any) -> None:
    with rt.Tape() as tape:
        first = resnet(IMAGE)
        second = resnet(2.0 * IMAGE)

    def known(of: Any) -> list[tuple[str, str, int]]:
        return [(one.op, one.layer, one.call) for one in of.tensors().found]

    def dropped(of: Any) -> list[tuple[str, str, int]]:
        return [(one.op, one.layer, one.call) for one in of.tensors(layer="drop").found]

    tape.save(tmp_path / "net.tape", {"image": IMAGE, "first": first, "second": second})
    loaded = rt.load(tmp_path / "net.tape")
    assert dropped(tape) == [("MaxPool", "resnet/drop", 1), ("MaxPool", "resnet/drop", 2)]
    with rt.Tape() as later:
        tf.reduce_sum(second)
    for other in (loaded, rt.join(tape, later), tape.replay([(IMAGE, 0.5 * IMAGE)]), loaded.replay({"image": IMAGE})):
        assert known(other)[: len(known(tape))] == known(tape)
        assert dropped(other) == dropped(tape)
        np.testing.assert_allclose(other.tensors(layer="pool5", call=2)[0].shape, [2, 4, 4, 4])
    again = tmp_path / "again.tape"
    loaded.save(again, {"first": loaded["first"]})
    assert known(rt.load(again)) == known(tape)
    assert [row[:1] for row in loaded.summary().rows] == [row[:1] for row in tape.summary().rows]


def test_models_that_are_trained_step_by_step() -> None:
    model = keras.Sequential([layers.Dense(2, name="hidden"), layers.Dense(1, name="out")], name="net")
    model.compile("sgd", "mse", run_eagerly=True)
    with rt.Tape() as tape:
        model.fit(tf.ones([8, 3]), tf.ones([8, 1]), batch_size=4, epochs=2, verbose=0)
    assert [one.call for one in tape.tensors(layer="net/hidden", op="MatMul").found] == [1, 2, 3, 4]


# ------------------------------------------------------------------ inside functions


def in_order(tape: Any, path: Any) -> list[tuple[str, int]]:
    """Return the layers of a saved tape, where functions are inlined, in the order in which they ran."""
    tape.save(path)
    layers = Layers(rt.load(path)._recorded().trace, guess=False)
    return list(dict.fromkeys((layer.path, layer.call) for layer in layers.of if layer.path))


def test_layers_inside_a_function_are_known(tmp_path: Any) -> None:
    inner = keras.Sequential([keras.layers.Dense(2, name="a"), keras.layers.Dropout(0.5, name="b")], name="inner")
    model = keras.Sequential([inner, keras.layers.Dense(1, name="c")], name="model")
    x = tf.ones([3, 2])
    eager = tf.reduce_sum(model(x))
    function = tf.function(model)
    for _ in range(2):  # traced in the first one
        with rt.Tape() as tape:
            loss = tf.reduce_sum(function(x))
        assert in_order(tape, tmp_path / "it.tape") == [("model/inner/a", 1), ("model/c", 1)]
        assert float(loss) == pytest.approx(float(eager))


def test_a_function_inside_a_layer_belongs_to_it(tmp_path: Any) -> None:
    dense = keras.layers.Dense(2, name="dense")
    dense.build([3, 2])
    called = tf.function(lambda x: tf.sin(dense(x)))

    class Outer(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return called(x) + called(2.0 * x)

    x = tf.ones([3, 2])
    with rt.Tape() as tape:
        Outer(name="outer")(x)
    assert in_order(tape, tmp_path / "it.tape") == [("outer", 1), ("outer/dense", 1), ("outer/dense", 2)]


def test_calls_in_a_loop_of_a_function_are_counted(tmp_path: Any) -> None:
    rnn = keras.layers.SimpleRNN(4, name="rnn")
    x = tf.ones([2, 5, 3])
    rnn(x)
    function = tf.function(rnn)
    with rt.Tape() as tape:
        function(x)
    found = in_order(tape, tmp_path / "it.tape")
    # Once more than there are steps: before its loop, Keras calls the cell to learn what it returns.
    assert found == [("rnn", 1), *(("rnn/simple_rnn_cell", number) for number in range(1, 7))]


def test_two_calls_of_a_function_are_two_calls_of_its_layers(tmp_path: Any) -> None:
    function, x = tf.function(keras.layers.Activation("tanh", name="act")), tf.ones([3, 2])
    with rt.Tape() as tape:
        function(function(x))  # without variables, no op runs in between
    assert in_order(tape, tmp_path / "it.tape") == [("act", 1), ("act", 2)]


def test_a_function_that_was_traced_before_has_no_layers(tmp_path: Any) -> None:
    dense = keras.layers.Dense(2, name="dense")
    function, x = tf.function(dense), tf.ones([3, 2])
    function(x)
    with rt.Tape() as tape:
        function(x)
    assert in_order(tape, tmp_path / "it.tape") == []
