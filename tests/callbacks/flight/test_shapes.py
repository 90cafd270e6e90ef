"""Batches of ever new shapes: neither memory nor the folder grows with them, and steps are still found."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from callbacks.flight.programs import LogOfScale
from retrotape.callbacks.flight import _fit, _pace
from retrotape.callbacks.flight._batches import named_batch

BAD, STEPS, EVERY = 52, 60, 5


def dataset():
    """Yield batches of as many shapes as there are; one is of zeros."""
    for number in range(STEPS):
        x = np.ones([number + 1, 2], "f4") * (number != BAD)
        yield x, np.ones([number + 1, 1], "f4")


class Look(keras.callbacks.Callback):
    """Notes how much the recorder holds."""

    def __init__(self, recorder, folder):
        super().__init__()
        self._recorder, self._folder = recorder, folder
        self.specs, self.files = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.specs.append(dict(self._recorder._fit._specs))
        self.files.append(len(list(self._folder.glob("recording-*/batch-*.json"))))


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=["compiled", "eager"])
def test_what_is_held_does_not_grow(tmp_path, monkeypatch, options):
    read = []
    monkeypatch.setattr(_pace, "_SHARE", np.inf)  # snapshots as often as they are wanted, whatever they cost
    monkeypatch.setattr(_fit, "segments", lambda path, real=_fit.segments: read.append(path) or real(path))
    model = keras.Sequential([keras.Input([2]), LogOfScale(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    recorder = rt.FlightRecorder(tmp_path, every=EVERY)
    look = Look(recorder, tmp_path)
    spec = tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None, 1], tf.float32)
    data = tf.data.Dataset.from_generator(dataset, output_signature=spec)
    model.fit(data, verbose=0, steps_per_epoch=STEPS, shuffle=False, callbacks=[recorder, look])
    assert recorder.crashes[0].step == BAD
    assert len(read) == 8 + 1  # for the first shapes, and for the crash
    bound = 8 + 3 * EVERY
    assert max(map(len, look.specs)) <= bound < STEPS
    assert max(look.files) <= bound
    held = [leaf for spec in look.specs[-1].values() for leaf in tf.nest.flatten(tuple(spec))]
    assert not [leaf for leaf in held if tf.is_tensor(leaf)]


@pytest.mark.parametrize(
    "batch",
    [
        (tf.ones([2, 3]), tf.ones([2])),
        {"b": tf.ones([2]), "a": (tf.constant(["x"]), None)},
        (tf.ragged.constant([[1, 2], [3]]), tf.sparse.from_dense(tf.eye(2)), None),
    ],
    ids=["tuple", "dictionary", "composite"],
)
def test_a_batch_is_put_together_from_its_spec(batch):
    found = named_batch(batch)
    arrays = {name: tensor.numpy() for name, tensor in zip(found.names, found.tensors, strict=True)}
    again = found.spec().packed(arrays)
    tf.nest.assert_same_structure(batch, again, expand_composites=True)
    for one, other in zip(*(tf.nest.flatten(nest, expand_composites=True) for nest in (batch, again)), strict=True):
        np.testing.assert_array_equal(one, other)
