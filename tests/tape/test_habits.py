"""What one types from habit, and what the tape says to it."""

from __future__ import annotations

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def test_keep_in_the_place_of_persistent():
    with pytest.raises(TypeError, match=r"True or False, got 'segments'\. Did you mean keep='segments'\?"):
        rt.Tape("segments")


@pytest.mark.parametrize("habit", [pickle.dumps, copy.copy, copy.deepcopy])
def test_tapes_are_saved_not_pickled(habit):
    x = tf.Variable(1.0)
    with rt.Tape() as tape:
        x * 2.0
    for each in (tape, rt.join(tape)):
        with pytest.raises(TypeError, match=r"not pickled or copied\. Save it: `tape\.save\(path\)`"):
            habit(each)


def test_a_model_as_source():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 2])))
    with pytest.raises(rt.errors.NotASourceError, match=r"got .*Sequential.* Did you mean its `trainable_variables`\?"):
        tape.gradient(loss, model)


def test_what_a_tape_looks_like():
    tape, x = rt.Tape(), tf.Variable(1.0)
    assert repr(tape) == "<tape: nothing recorded>"
    with tape:
        x * 2.0
        assert repr(tape) == "<tape: 2 equations, recording>"
    assert repr(tape) == "<tape: 2 equations>"
    assert repr(rt.join(tape)) == "<joined tape: 2 equations, 0 names>"


# ------------------------------------------------------------------ ValueError where the stock tape raises it


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
def test_a_tape_is_entered_once(make):
    with make() as tape, pytest.raises(ValueError, match="recording"):
        tape.__enter__()


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
@pytest.mark.parametrize("value", [None, 1.0, "x", np.ones(2)], ids=["None", "number", "text", "array"])
def test_what_cannot_be_watched(make, value):
    with make() as tape, pytest.raises(ValueError, match=r"(?i)tensor"):
        tape.watch(value)


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
def test_a_pause_outside_of_the_block(make):
    with make() as tape:
        pass
    with pytest.raises(ValueError, match="recording"), tape.stop_recording():
        pass


@pytest.mark.parametrize("make", [tf.GradientTape, rt.Tape])
@pytest.mark.parametrize(
    ("target", "source"),
    [([2], [2, 3]), ([2, 3], [2]), ([3, 2], [2, 3])],
    ids=["target of numbers", "source of numbers", "other length"],
)
def test_ranks_of_batch_jacobian(make, target, source):
    x = tf.ones(source)
    with make() as tape:
        tape.watch(x)
        y = tf.ones(target) * tf.reduce_sum(x)
    with pytest.raises(ValueError, match=r"rank|first dimension"):
        tape.batch_jacobian(y, x)


@pytest.mark.parametrize("method", ["gradient", "jacobian", "backward", "backward_each", "batch_jacobian"])
def test_unknown_unconnected_gradients(method):
    x = tf.ones([2, 2])
    with rt.Tape() as tape:
        y = x * x
    target = [y, y] if method == "backward_each" else y
    source = x if method == "batch_jacobian" else [x]
    with pytest.raises(ValueError, match=r"takes 'none' or 'zero', or a tf\.UnconnectedGradients, got 'nought'\."):
        getattr(tape, method)(target, source, unconnected_gradients="nought")


def test_one_source_in_a_list():
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as stock, rt.Tape() as tape:
        stock.watch(x)
        y = x * x
    (found,) = tape.batch_jacobian(y, [x])
    np.testing.assert_array_equal(found, stock.batch_jacobian(y, x))
    np.testing.assert_array_equal(tape.batch_jacobian([y], {"x": x})["x"], found)
    np.testing.assert_array_equal(tape.jacobian([y], x), tape.jacobian(y, x))
    (nothing,) = tape.batch_jacobian(y, [tf.ones([2, 3])])
    assert nothing.shape == [2, 2, 3]


# ------------------------------------------------------------------ dictionaries and lists


def test_a_dictionary_of_losses():
    v, w = tf.Variable(3.0), tf.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        losses = {"square": v * v, "sum": [tf.reduce_sum(w), v * 5.0]}
    rows = tape.backward_each(losses, [v, w])
    assert rows.names == ("square", "sum")
    assert float(rows["square"][v]) == 6.0
    assert rows["square"].missing == (w,)
    assert float(rows["sum"][v]) == 5.0
    assert rows["sum"][w].numpy().tolist() == [1.0, 1.0]
    assert len(tape.backward_each({})) == 0
    zeros = tape.backward_each(losses, [w], unconnected_gradients="zero")
    assert zeros["square"].missing == ()


def test_why_of_nests():
    v, w, unused = tf.Variable(3.0), tf.Variable(2.0), tf.Variable(1.0)
    with rt.Tape() as tape:
        first, second, whole = v * v, tf.stop_gradient(w) * 2.0, tf.cast(v, tf.int32)
    found = tape.why({"a": first, "b": [second, whole]}, {"v": v, "rest": (w, unused)})
    verdicts = tf.nest.map_structure(lambda one: one.verdict, found)
    assert verdicts == {
        "v": rt.Verdict.CONNECTED,
        "rest": (rt.Verdict.STOP_GRADIENT, rt.Verdict.SOURCE_NOT_RECORDED),
    }
    assert tape.why([first], [v])[0].verdict is rt.Verdict.CONNECTED
    slope = tape.gradient(first, v)
    assert tape.why([slope], v).verdict is rt.Verdict.CONNECTED
    assert tape.why(tape.gradient(slope, v), v).verdict is rt.Verdict.ZERO


# ------------------------------------------------------------------ arrays


def test_arrays_as_vectors_tangents_and_cotangents():
    x, weights = tf.constant([1.0, 2.0]), np.array([1.0, 10.0])  # of double precision
    with rt.Tape() as tape:
        y = x**3
        loss = tf.reduce_sum(y)
    np.testing.assert_allclose(tape.jvp(y, x, weights), [3.0, 120.0])
    np.testing.assert_allclose(tape.vjp(y, x, weights), [3.0, 120.0])
    np.testing.assert_allclose(tape.hvp(loss, x, weights), [6.0, 120.0])
    np.testing.assert_allclose(tape.hvp(loss, [x], [weights.astype(int)])[0], [6.0, 120.0])
    with pytest.raises(rt.errors.ShapeMismatchError, match=r"Got a vector float32\[3\] for a source float32\[2\]"):
        tape.hvp(loss, x, np.ones(3))
    with pytest.raises(rt.errors.ShapeMismatchError, match="Got a vector float64"):
        tape.hvp(loss, x, tf.ones(2, tf.float64))


def test_an_array_is_not_a_source():
    array = np.ones(2, np.float32)
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.square(array))
    with pytest.raises(rt.errors.NotASourceError, match=r"An array is not recorded: .*`x = tf\.constant\(array\)`"):
        tape.gradient(y, array)


# ------------------------------------------------------------------ names on a live tape


def two_layers():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)], name="net")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 2])) ** 2)
    return model, tape, loss


def test_variables_by_name():
    model, tape, loss = two_layers()
    kernel = model.layers[0].kernel
    path = kernel.path
    expected = tape.gradient(loss, kernel)
    for name in (path, path.partition("/")[2], f"{path}:0"):
        np.testing.assert_array_equal(tape.gradient(loss, name), expected)
    both = tape.gradient(loss, {"a": path, "b": [model.layers[1].bias.path, kernel]})
    np.testing.assert_array_equal(both["a"], both["b"][1])
    np.testing.assert_array_equal(tape.backward(loss, [path])[kernel], expected)
    assert tape.why(loss, path).verdict is rt.Verdict.CONNECTED
    assert len(tape.versions(path)) == 1
    np.testing.assert_array_equal(tape.value(path), kernel.numpy())
    ((_, streamed),) = tape.stream(loss, path)
    np.testing.assert_array_equal(streamed, expected)
    again = tape.replay({path: tf.zeros([2, 3])})
    np.testing.assert_array_equal(again.value(path if path in again else kernel.value), tf.zeros([2, 3]))


def test_names_inside_a_function():
    v = tf.Variable(3.0, name="inside/v")

    @tf.function
    def run():
        with rt.Tape() as tape:
            y = v * v
        return tape.gradient(y, "v")

    assert float(run()) == 6.0


def test_a_name_that_several_have_and_one_that_none_has():
    _, tape, loss = two_layers()
    with pytest.raises(
        rt.errors.AmbiguousNameError, match=r"'kernel' may be any of '.*/kernel', '.*/kernel'\. Give more"
    ):
        tape.gradient(loss, "kernel")
    with pytest.raises(rt.errors.UnknownNameError, match=r"nothing named 'kernal'; .* Did you mean '.*/kernel'\?"):
        tape.gradient(loss, "kernal")
    with rt.Tape() as tape:
        y = tf.constant(2.0) * 3.0
    with pytest.raises(
        rt.errors.UnknownNameError, match=r"nothing named 'x'; it has no names. .* give tensors themselves"
    ):
        tape.gradient(y, "x")


def test_words_that_are_options_are_no_names():
    _, tape, loss = two_layers()
    assert float(tape.gradient(loss, tf.Variable(1.0), None, "zero")) == 0.0


# ------------------------------------------------------------------ names when saving


def test_keywords_are_names(tmp_path):
    x = tf.constant(3.0)
    with rt.Tape() as tape:
        loss = x * x
    tape.save(tmp_path / "a.tape", loss=loss, data={"x": x})
    assert rt.load(tmp_path / "a.tape").names == ("data/x", "loss")
    tape.save(tmp_path / "a.tape", {"x": x}, loss=loss, overwrite=True)
    assert rt.load(tmp_path / "a.tape").names == ("loss", "x")
    with pytest.raises(
        TypeError, match=r"overwite=True, which is neither an option nor a tensor .* mean 'overwrite'\?"
    ):
        tape.save(tmp_path / "a.tape", overwite=True)
    with pytest.raises(TypeError, match="the name 'loss' twice, in names= and as a keyword"):
        tape.save(tmp_path / "a.tape", {"loss": loss}, loss=loss)


# ------------------------------------------------------------------ gradients


def test_clip_without_a_word_is_by_the_global_norm():
    v = tf.Variable([0.0, 0.0])
    grads = rt.Gradients([(v, tf.constant([3.0, 4.0]))])
    np.testing.assert_allclose(grads.clip(1.0)[v], grads.clip(global_norm=1.0)[v])
    assert float(grads.clip(1.0).norm()) == pytest.approx(1.0)
    with pytest.raises(TypeError, match="clip takes one of"):
        grads.clip(1.0, value=1.0)


def test_cosine():
    v, w = tf.Variable([0.0, 0.0]), tf.Variable(0.0)
    one = rt.Gradients([(v, tf.constant([1.0, 2.0])), (w, tf.constant(-1.0))])
    other = rt.Gradients([(v, tf.constant([0.5, 1.5])), (w, None)])
    expected = 3.5 / np.sqrt(6.0 * 2.5)
    assert float(one.cosine(other)) == pytest.approx(expected)
    assert float((1e-30 * one).cosine(1e30 * other)) == pytest.approx(expected)
    assert float(one.cosine(rt.Gradients([(v, None)]))) == 0.0
    sparse = tf.IndexedSlices(tf.constant([1.0, 1.0]), tf.constant([0, 0]), tf.constant([2]))
    assert float(rt.Gradients([(v, sparse)]).cosine(rt.Gradients([(v, tf.constant([7.0, 0.0]))]))) == pytest.approx(1.0)


def test_keys_of_a_keras_model_know_their_path():
    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.inner = keras.layers.Dense(2, name="inner")

        def call(self, inputs):
            return self.inner(inputs)

    net = Net()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(net(tf.ones([1, 2])))
    kernel = net.inner.kernel
    assert kernel.path == "net/inner/kernel"
    grads = tape.backward(loss, net.trainable_variables)
    assert grads.keys()[0] is kernel
    assert "net/inner/kernel" in str(grads)
    assert "kernel" in grads
    default = tape.backward(loss)
    assert default.keys()[0] is kernel
    assert "net/inner/kernel" in str(default)
    np.testing.assert_array_equal(tape.gradient(loss, "inner/kernel"), grads[kernel])


def test_a_name_among_gradients_that_is_nearly_right():
    v = tf.Variable(1.0, name="dense/kernel")
    grads = rt.Gradients([(v, tf.constant(1.0))])
    with pytest.raises(rt.errors.UnknownSourceError, match=r"'dense/kernal' here\. .* Did you mean 'dense/kernel'\?"):
        grads["dense/kernal"]


def test_names_are_completed_in_brackets(tmp_path):
    v, x = tf.Variable(1.0, name="v"), tf.constant(2.0)
    with rt.Tape() as tape:
        loss = v * x
    assert tape.backward(loss, [v, x])._ipython_key_completions_() == ["v"]
    tape.save(tmp_path / "a.tape", loss=loss)
    assert rt.load(tmp_path / "a.tape")._ipython_key_completions_() == ["loss", "v"]
