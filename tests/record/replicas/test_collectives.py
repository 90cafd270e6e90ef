"""Collectives of functions that are run op by op, where something is special about them."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.record import _collectives, current_stack
from retrotape.record._bodies import Step
from retrotape.record._collectives import Member, meet

DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def member(
    value: tf.Tensor, op: str = "CollectiveReduceV2", size: int = 2, instance: int = 7, **attrs: bytes
) -> Member:
    """Return a node of a collective."""
    kinds = {"merge_op": b"Add", "final_op": b"Id", **attrs}
    flat = tuple(part for pair in kinds.items() for part in pair)
    spec = SimpleNamespace(device=DEVICE, name="node")
    inputs = [value, *(tf.constant(number) for number in (size, 1, instance))]
    return Member(Step(op, spec, (), ("node:data:0",), (), flat), inputs, None)


@pytest.mark.parametrize(
    ("op", "attrs", "kind", "made", "slope"),
    [
        ("CollectiveReduceV2", {}, "SUM", [9.0], 3.0),
        ("CollectiveReduceV2", {"final_op": b"Div"}, "MEAN", [4.5], 1.5),
        ("CollectiveGatherV2", {}, "GATHER", [3.0, 6.0], 3.0),
    ],
)
def test_members_in_one_process(op, attrs, kind, made, slope):
    x = tf.constant([3.0])
    with rt.Tape() as tape, tf.GradientTape() as stock:
        stock.watch(x)
        members = [member(x * 1.0, op, **attrs), member(x * 2.0, op, **attrs)]
        meet(current_stack(), members)
        results = [one.outputs[0] for one in members]
    assert members[0].kind == kind
    for result in results:
        assert result.numpy().tolist() == made
        assert tape.gradient(result, x).numpy().tolist() == [slope]
    assert stock.gradient(results[1], x).numpy().tolist() == [slope]


def test_instances_are_kept_apart():
    members = [member(tf.constant([float(number)]), instance=number % 2) for number in range(4)]
    meet(current_stack(), members)
    assert [one.outputs[0].numpy().tolist() for one in members] == [[2.0], [4.0], [2.0], [4.0]]


def test_replicas_that_do_not_take_part():
    with pytest.raises(rt.errors.ReplicaError, match=r"was reached by 1 of 2 replicas\. Make all .*`tf\.cond`"):
        meet(current_stack(), [member(tf.constant([1.0]))])


@pytest.mark.parametrize("kind", ["SUM", "GATHER", "CollectiveReduceV2"])
def test_members_in_other_processes(monkeypatch, kind):
    monkeypatch.setattr(_collectives, "spans_processes", lambda: True)
    made = tf.constant([10.0])
    monkeypatch.setattr(Member, "run", lambda self: [made])
    options = {"SUM": {}, "GATHER": {"op": "CollectiveGatherV2"}, "CollectiveReduceV2": {"merge_op": b"Max"}}
    x = tf.constant([3.0])
    with rt.Tape() as tape, tf.GradientTape() as stock:
        stock.watch(x)
        one = member(x * 2.0, **options[kind])
        meet(current_stack(), [one])
        y, beside = one.outputs[0] * x, x * 5.0
    assert one.kind == kind
    assert y.numpy().tolist() == [30.0]
    with pytest.raises(rt.errors.ReplicaError, match="`def step"):
        stock.gradient(y, x)
    assert tape.gradient(beside, x).numpy().tolist() == [5.0]


def test_maxima_are_refused():
    x = tf.constant([3.0])
    run = iter([tf.constant([6.0]), tf.constant([6.0])])
    with rt.Tape() as tape:
        y = current_stack().on_collective("CollectiveReduceV2", 2, [x * 1.0, x * 2.0], lambda: list(run))[0] * 1.0
    with pytest.raises(rt.errors.ReplicaError, match=r"CollectiveReduceV2 in a tf\.function"):
        tape.gradient(y, x)


def test_scheduled_functions_are_refused():
    schedule = lambda: tf.distribute.coordinator.ClusterCoordinator.schedule(None, tf.function(lambda: 1.0))  # noqa: E731
    with rt.Tape() as tape:  # it needs no cluster to refuse
        with pytest.raises(
            rt.errors.ReplicaError, match=r"Open the tape inside the scheduled function: `@tf\.function"
        ):
            schedule()
        with tape.stop_recording(), pytest.raises(AttributeError):  # it is TensorFlow's again
            schedule()


def test_keras_distribution_changes_nothing():
    """Keras ignores it on TensorFlow: all variables are ordinary ones."""
    rows = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
        with rt.Tape() as tape:
            y = tf.reduce_sum(layer(rows) ** 2)
        assert type(layer.kernel.value).__name__ == "ResourceVariable"
        assert tape.gradient(y, layer.kernel).numpy().tolist() == [[48.0], [68.0]]
    finally:
        keras.distribution.set_distribution(None)
