"""What replicas do where there is one of them, and what is refused where others are in another process."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.record import current_stack

ROWS = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


def fitted(optimizer: type, rate: float, tape: rt.Tape | None = None) -> tf.Tensor:
    """Return the loss after an eager `fit`, or its gradient with respect to the rate."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="silu"), keras.layers.Dense(1)])
    model.compile(optimizer(rate), "mse", run_eagerly=True)
    targets = ROWS.sum(1, keepdims=True)

    def train() -> tf.Tensor:
        model.fit(ROWS, targets, epochs=2, verbose=0, batch_size=8, shuffle=False)
        return tf.reduce_mean((model(ROWS) - targets) ** 2)

    if tape is None:
        return train()
    with tape:
        loss = train()
    return tape.gradient(loss, model.optimizer.learning_rate, through_updates=True)


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_through_the_steps_of_an_eager_fit(optimizer):
    step = 1e-3
    slope = (fitted(optimizer, 0.05 + step) - fitted(optimizer, 0.05 - step)) / (2 * step)
    np.testing.assert_allclose(fitted(optimizer, 0.05, rt.Tape()), slope, rtol=1e-3)


def test_the_default_replica_can_be_saved_after_a_reduction(tmp_path):
    w = tf.Variable(3.0, name="w")
    with rt.Tape() as tape:
        y = tf.distribute.get_replica_context().all_reduce("SUM", w * w)
    tape.save(tmp_path / "t.rtape", names={"y": y, "w": w})
    assert float(tape.gradient(y, w)) == float(rt.load(tmp_path / "t.rtape").gradient("y", "w")) == 6.0


@pytest.mark.parametrize("reduction", ["reduce", "gather"])
def test_values_of_other_processes_are_refused(reduction):
    x = tf.constant([3.0])
    with rt.Tape() as tape:
        given, made = x * 2.0, tf.constant([10.0])
        stack = current_stack()
        if reduction == "reduce":
            stack.on_all_reduce("SUM", 2, [[given]], lambda: [made])
        else:
            stack.on_all_gather(0, 2, [[given]], lambda: [made])
        y, other = made * x, given * x
    with pytest.raises(
        rt.errors.ReplicaError, match=rf"an all_{reduction} of 2 replicas .*, and this tape has only the values of"
    ):
        tape.gradient(y, x)
    with pytest.raises(rt.errors.NotRecordedError):
        tape.gradient(y, given)
    assert tape.gradient(other, x).numpy().tolist() == [12.0]  # what does not pass it is answered


def slices(values: tf.Tensor) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, tf.constant([0]), tf.constant([1, 1]))


@pytest.mark.parametrize(("op", "slope"), [("SUM", 2.0), ("MEAN", 2.0)])
def test_slices_of_one_replica(op, slope):
    x = tf.constant([[3.0]])
    with rt.Tape() as tape:
        given, made = slices(x * 2.0), slices(tf.constant([[6.0]]))
        current_stack().on_all_reduce(op, 1, [[given]], lambda: [made])
        y = made.values * 1.0
    assert tape.gradient(y, x).numpy().tolist() == [[slope]]


def test_slices_that_were_reduced_in_another_way_are_refused():
    x = tf.constant([[3.0]])
    with rt.Tape() as tape:
        given, made = slices(x * 2.0), slices(tf.constant([[7.0]]))
        current_stack().on_all_reduce("MEAN", 1, [[given]], lambda: [made])
        y = made.values * 1.0
    with pytest.raises(rt.errors.ReplicaError, match=r"an all-reduce of tf\.IndexedSlices"):
        tape.gradient(y, x)


def test_one_mirrored_replica():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        w = tf.Variable(3.0)
    inside = []

    def replica() -> tf.Tensor:
        with rt.Tape() as tape:
            y = tf.distribute.get_replica_context().all_reduce("SUM", w * w)
        inside.append((tape, y))
        return tape.gradient(y, w)

    with rt.Tape() as around:
        slope = strategy.run(replica)
    assert float(slope) == 6.0
    assert float(around.gradient(slope, w)) == 2.0
    tape, y = inside[0]
    assert float(around.gradient(y, w)) == 6.0
    with pytest.raises(rt.errors.ReplicaError, match=r"all_gather of 1 replica \(at .*test_one_replica\.py"):
        tape.gradient(y, w)
