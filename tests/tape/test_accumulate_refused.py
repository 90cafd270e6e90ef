"""Micro-batches that cannot be added up, and what is said about them."""

from __future__ import annotations

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors


def mean(x):
    return tf.reduce_mean(tf.cast(x, tf.float32))


def test_no_micro_batches():
    with pytest.raises(
        ValueError, match=r"Got no micro-batches; give at least one .* A generator can be used only once"
    ):
        rt.accumulate(mean, iter([]))


def test_nothing_in_any_micro_batch():
    with pytest.raises(ValueError, match="Got 2 micro-batches of size zero; give at least one that is not empty"):
        rt.accumulate(mean, [tf.zeros([0]), tf.zeros([0])])


def test_a_loss_that_is_not_a_scalar():
    w = tf.Variable(1.0)
    with pytest.raises(
        errors.ShapeMismatchError,
        match=r"Got a loss of shape \(2,\) for micro-batch 1, expected a scalar, .*`tf.reduce_mean\(losses\)`",
    ):
        rt.accumulate(lambda x: w * x, [tf.constant([1.0, 2.0])])


def test_a_loss_that_is_no_tensor():
    with pytest.raises(errors.NotASourceError, match="A target must be a tensor"):
        rt.accumulate(lambda x: None, [tf.constant([1.0])])


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        ((tf.constant(1.0), tf.constant([1.0])), "EagerTensor without dimensions"),
        (([1.0, 2.0],), "float without dimensions"),
        ((), "nothing"),
    ],
    ids=["scalar", "list", "empty"],
)
def test_a_size_that_cannot_be_told(batch, got):
    with pytest.raises(
        errors.ShapeMismatchError, match=rf"size of micro-batch 2: its first item is {got}, .*`sizes=\[...\]`"
    ):
        rt.accumulate(lambda *_: tf.Variable(1.0) * 1.0, [tf.constant([1.0]), batch])


def test_one_size_for_each():
    batches = [tf.constant([1.0])] * 3
    with pytest.raises(errors.ShapeMismatchError, match="Got 2 sizes for more micro-batches than that; give one for"):
        rt.accumulate(mean, batches, sizes=[1, 1])
    with pytest.raises(errors.ShapeMismatchError, match="Got more sizes than the 3 micro-batches; give one for each"):
        rt.accumulate(mean, batches, sizes=[1, 1, 1, 1])


@pytest.mark.parametrize("size", [-1, [1, 2], float("nan")])
def test_a_size_that_is_none(size):
    with pytest.raises(errors.ShapeMismatchError, match=r"as a size; expected a nonnegative number"):
        rt.accumulate(mean, [tf.constant([1.0])], sizes=[size])


def test_a_dataset_or_a_tensor_inside_a_function():
    for batches, name in ((tf.data.Dataset.range(4).batch(2), "a dataset"), (tf.ones([2, 2]), "a tensor")):
        with pytest.raises(
            errors.TapeUseError, match=rf"micro-batches must be a list, got {name}\. Cut a tensor up: `tf.split\(x"
        ):
            tf.function(lambda batches=batches: rt.accumulate(mean, batches).loss)()


def test_a_batch_whose_size_is_not_clear():
    w = tf.Variable(1.0)
    batches = [{"bias": tf.ones(1), "x": tf.ones(3)}, {"bias": tf.ones(1), "x": tf.ones(2)}]
    with pytest.raises(errors.ShapeMismatchError, match=r"first dimensions \[1, 3\]\. Give the sizes"):
        rt.accumulate(lambda batch: w * tf.reduce_mean(batch["x"]), batches)
    assert rt.accumulate(lambda batch: w * tf.reduce_mean(batch["x"]), batches, sizes=[3, 2]).size == 5
