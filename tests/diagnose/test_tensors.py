"""`tape.tensors(...)`: any tensor on the way, found afterwards, as a source or a target."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


@pytest.fixture(scope="module")
def cnn() -> keras.Model:
    keras.utils.set_random_seed(3)  # before layers take their seeds
    layers = [
        keras.layers.Input([12, 12, 3]),
        keras.layers.Conv2D(4, 3, activation="relu", name="conv1"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.Conv2D(5, 3, activation="relu", name="conv2"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(3, name="head"),
    ]
    return keras.Sequential(layers, name="cnn")


@pytest.fixture(scope="module")
def image() -> tf.Tensor:
    return tf.random.stateless_uniform([2, 12, 12, 3], [1, 2])


def heat(maps: tf.Tensor, grads: tf.Tensor) -> np.ndarray:
    weights = tf.reduce_mean(grads, axis=(1, 2), keepdims=True)
    return tf.nn.relu(tf.reduce_sum(maps * weights, -1)).numpy()


@pytest.mark.parametrize("keep", ["needed", "leaves", "all", "segments"])
def test_grad_cam_on_a_stock_model_that_was_not_rebuilt(cnn, image, keep):
    with rt.Tape(keep=keep) as tape:
        score = cnn(image)[:, 1]
    maps = tape.tensors(layer="conv2", op="Relu")[-1]
    ours = heat(maps, tape.gradient(score, maps))

    both = keras.Model(cnn.inputs, [cnn.get_layer("conv2").output, cnn.outputs[0]])
    with tf.GradientTape() as stock:
        known, out = both(image)
        score = out[:, 1]
    theirs = heat(known, stock.gradient(score, known))
    assert np.abs(theirs).max() > 1e-4
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_found_tensors_are_targets_too(cnn, image):
    with rt.Tape() as tape:
        cnn(image)
    first, second = tape.tensors(op="relu")
    assert first.shape == (2, 10, 10, 4)
    assert tape.gradient(second, image).shape == image.shape
    assert tape.gradient(second, first) is not None
    assert tape.gradient(first, second) is None


def test_a_tensor_that_is_held_is_found_itself():
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        y = tf.exp(x)
        z = y * 3.0
    (found,) = tape.tensors(op="Exp")
    assert found is y
    assert float(tape.gradient(z, found)) == 3.0


def test_what_was_not_kept_is_computed_again_and_stands_for_itself():
    x = tf.constant([1.0, 2.0])
    with rt.Tape(keep="leaves") as tape:
        y = tf.reduce_sum(tf.sin(x * 3.0) * x)
    found = tape.tensors(op="Sin")[0]
    np.testing.assert_allclose(found, np.sin([3.0, 6.0]), rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(y, found), [1.0, 2.0])
    assert tape.tensors(op="Sin")[0].shape == (2,)


def test_in_the_order_in_which_they_were_made():
    with rt.Tape() as tape:
        y = tf.constant(1.0)
        for step in range(5):
            y = y + float(step)
    assert [float(value) for value in tape.tensors(op="AddV2")] == [1.0, 2.0, 4.0, 7.0, 11.0]
    assert [float(value) for value in tape.tensors(op="AddV2")[1:3]] == [2.0, 4.0]


def test_by_line():
    x = tf.constant(2.0)
    with rt.Tape(keep="all") as tape:
        y = x * x
        z = y * x
    here = inspect.currentframe().f_lineno - 1
    assert tape.tensors(line=here)[0] is z
    assert tape.tensors(line=f"test_tensors.py:{here - 1}")[0] is y
    assert len(tape.tensors(line=f"sors.py:{here}")) == 0  # half a name of a file is none
    assert len(tape.tensors(op="Mul", line=here)) == 1


def test_by_name(tmp_path):
    w, x = tf.Variable([2.0], name="dense/kernel"), tf.constant([3.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(w * x)
    read = tape.tensors(name="kernel")
    assert [one.op for one in read.found] == ["ReadVariableOp"]
    assert tape.gradient(y, read[0]).numpy().tolist() == [3.0]
    tape.save(tmp_path / "y.tape", {"x": x, "y": y})
    loaded = rt.load(tmp_path / "y.tape")
    (found,) = loaded.tensors(name="y")
    assert float(found) == 6.0
    assert loaded.gradient(found, "x").numpy().tolist() == [2.0]


def test_inside_a_function_after_saving(tmp_path):
    @tf.function
    def inside(x):
        return tf.reduce_sum(tf.nn.relu(x * 2.0) ** 2)

    x = tf.constant([1.0, -1.0])
    with rt.Tape() as tape:
        loss = inside(x)
    assert len(tape.tensors(op="Relu")) == 0
    tape.save(tmp_path / "f.tape", {"loss": loss, "x": x})
    loaded = rt.load(tmp_path / "f.tape")
    (hidden,) = loaded.tensors(op="Relu")
    assert loaded.gradient("loss", hidden).numpy().tolist() == [4.0, 0.0]


def test_layers_by_part_of_their_path(cnn, image):
    with rt.Tape() as tape:
        cnn(image)
    assert len(tape.tensors(layer="cnn/conv2", op="Conv2D")) == len(tape.tensors(layer="conv2", op="Conv2D")) == 1
    with pytest.raises(rt.errors.UnknownLayerError, match="This tape has no layer 'conv'"):  # half a name is none
        tape.tensors(layer="conv")
    assert len(tape.tensors(layer="cnn", op="Conv2D")) == 2


def test_what_is_known_of_each(cnn, image):
    with rt.Tape() as tape:
        cnn(image)
    found = tape.tensors(op="Conv2D")
    assert [(one.layer, str(one.type)) for one in found.found] == [
        ("cnn/conv1", "float32[2,10,10,4]"),
        ("cnn/conv2", "float32[2,8,8,5]"),
    ]
    assert repr(found).splitlines()[0] == "2 tensors"
    assert "Conv2D  float32[2,8,8,5]" in repr(found)


def test_nothing_found_says_where_to_look():
    with rt.Tape() as tape:
        tf.sin(tf.constant(1.0))
    found = tape.tensors(op="Relu")
    assert not found
    with pytest.raises(IndexError, match=r"tape.summary\(\)"):
        found[-1]


def test_after_a_reset_they_are_gone():
    with rt.Tape() as tape:
        tf.sin(tf.constant(1.0))
    found = tape.tensors(op="Sin")
    tape.reset()
    with pytest.raises(rt.errors.TapeUseError, match="was reset"):
        found[0]
