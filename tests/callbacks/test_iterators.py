"""Batches that are taken out of an iterator and handed on are the same, and so is their type."""

from __future__ import annotations

import pytest
import tensorflow as tf

from retrotape.callbacks._iterators import handed_on, take

ROWS = 5
DATASETS = {
    "a tensor": tf.data.Dataset.range(ROWS).batch(2),
    "known sizes": tf.data.Dataset.range(4).batch(2, drop_remainder=True),
    "a tuple": tf.data.Dataset.from_tensor_slices((tf.ones([ROWS, 3]), ["a"] * ROWS)).batch(2),
    "one in a tuple": tf.data.Dataset.from_tensor_slices((tf.ones([ROWS, 3]),)).batch(2),
    "a dictionary": tf.data.Dataset.from_tensor_slices(
        ({"a": tf.ones([ROWS]), "b": tf.zeros([ROWS, 2])}, tf.range(ROWS))
    ).batch(2),
    "ragged": tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], [3], [4, 5, 6], [7], []])).batch(2),
    "sparse": tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(tf.eye(ROWS))).batch(2),
    "no known rank": tf.data.Dataset.from_generator(
        lambda: iter([[1.0], [2.0], [3.0]]), output_signature=tf.TensorSpec(None, tf.float32)
    ),
}


def flat(batch):
    return [part.numpy().tolist() for part in tf.nest.flatten(batch, expand_composites=True)]


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("count", [1, 2, 9])
def test_batches_and_their_types_are_the_same(name, count):
    iterator = iter(DATASETS[name])
    batches = take(iterator, count)
    again = handed_on(batches, iterator, None)
    assert again.element_spec == iterator.element_spec
    assert again._type_spec == iterator._type_spec  # what a `tf.function` is traced for
    assert [flat(batch) for batch in again] == [flat(batch) for batch in batches]
    expected = [flat(batch) for batch in DATASETS[name]]
    assert [flat(batch) for batch in batches] + [flat(batch) for batch in iterator] == expected


def test_nothing_is_left_to_take():
    iterator = iter(tf.data.Dataset.range(2))
    assert len(take(iterator, 5)) == 2
    assert take(iterator, 5) == []
