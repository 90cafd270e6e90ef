"""A tape that is saved here and differentiated in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.workers import outcomes, started


class Doubling(keras.layers.Layer):
    """A layer of the user's own: what it is given, twice, by a weight."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), initializer="ones", name="w")

    def call(self, x):
        return 2.0 * x * self.w


def save_regression(path: Path) -> tuple[rt.Tape, Any, Any]:
    """4.1: a line through three points, seen from zero."""
    x, y = tf.constant([1.0, 2.0, 3.0]), tf.constant([2.0, 4.0, 6.0])
    w, b = tf.Variable(0.0, name="w"), tf.Variable(0.0, name="b")
    with rt.Tape() as tape:
        loss = tf.reduce_mean(tf.square(x * w + b - y))
    tape.save(path, {"loss": loss, "x": x})
    return tape, loss, w


def save_layer(path: Path) -> tuple[rt.Tape, Any, Any]:
    """4.2: a layer whose class is known here and nowhere else."""
    layer = Doubling(name="doubling")
    layer.build((None, 1))
    x = tf.constant([[1.0], [2.0]])  # 2·(1 + 2) = 6 by the weight
    with rt.Tape() as tape:
        loss = tf.reduce_sum(layer(x))
        curved = tf.reduce_sum(tf.nn.silu(layer(x)) ** 2)
    tape.save(path, {"loss": loss, "curved": curved, "x": x})
    return tape, curved, layer.w


LOADING_SIDE = """
import json, sys
import retrotape as rt

def orders(tape, target, source):
    found = []
    for _ in range(3):
        target = tape.gradient(target, source)
        found.append(target.numpy().reshape(-1).tolist())
    return found

regression, layer = map(rt.load, sys.argv[1:])
known = [name for name in sys.modules if "scenarios" in name]
grads = regression.backward("loss")
print(json.dumps({
    "known": known,
    "loss": float(regression["loss"]),
    "by w": float(regression.gradient("loss", "w")),
    "by b": float(regression.gradient("loss", "b")),
    "of w": orders(regression, "loss", "w"),
    "norm": float(grads.norm()),
    "layer w": layer.gradient("loss", "doubling/w").numpy().tolist(),
    "of the layer": orders(layer, "curved", "doubling/w"),
    "on another input": layer.replay({"x": [[3.0], [5.0]]}).gradient("loss", "w").numpy().tolist(),
}))
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> dict[str, Any]:
    """Save both tapes, load them in a process that has never seen this file, and return what that process says."""
    folder = tmp_path_factory.mktemp("elsewhere")
    regression, layer = folder / "regression.tape", folder / "layer.tape"
    live = {"regression": save_regression(regression), "layer": save_layer(layer), "file": layer}
    (folder / "load.py").write_text(LOADING_SIDE)
    arguments = [sys.executable, str(folder / "load.py"), str(regression), str(layer)]
    run = subprocess.run(arguments, capture_output=True, text=True, cwd=folder, timeout=300)
    assert run.returncode == 0, run.stderr
    return {**live, **json.loads(run.stdout.splitlines()[-1])}


def check_orders(found: list[list[float]], tape: rt.Tape, target: tf.Tensor, source: Any) -> None:
    """Compare the first three derivatives with those of the tape that was recorded."""
    assert len(found) == 3
    for order in found:
        target = tape.gradient(target, source)
        np.testing.assert_allclose(order, np.reshape(target, -1), rtol=1e-6)


def test_4_1_a_regression_is_differentiated_in_another_process(elsewhere):
    tape, loss, w = elsewhere["regression"]
    assert elsewhere["known"] == []
    # From zero, the loss is the mean of (w x + b - 2 x)²: by w, -4 mean(x²); by b, -4 mean(x).
    assert elsewhere["by w"] == pytest.approx(-4.0 * (1 + 4 + 9) / 3.0, rel=1e-6)
    assert elsewhere["by b"] == -4.0 * 2.0
    assert elsewhere["loss"] == float(loss)
    assert elsewhere["norm"] == pytest.approx(float(tape.backward(loss).norm()), rel=1e-6)
    check_orders(elsewhere["of w"], tape, loss, w)
    assert elsewhere["of w"][1:] == [[pytest.approx(2.0 * (1 + 4 + 9) / 3.0)], [0.0]]


def test_4_2_a_layer_is_differentiated_where_its_class_does_not_exist(elsewhere):
    tape, curved, w = elsewhere["layer"]
    assert elsewhere["layer w"] == [6.0]
    assert elsewhere["on another input"] == [16.0]
    assert b"Doubling" not in elsewhere["file"].read_bytes()
    check_orders(elsewhere["of the layer"], tape, curved, w)


# ------------------------------------------------------------------ across the workers of a job

WORKER = """
import os, sys
import tensorflow as tf, keras
import retrotape as rt

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id
x = [tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])][rank]
with strategy.scope():
    w, b = tf.Variable(0.0, name="w"), tf.Variable(0.0, name="b")
    adam = keras.optimizers.Adam(0.1)

def loss_of():
    return tf.reduce_sum((w * x + b - 2.0 * x) ** 2) / 4.0

def step():
    with tf.GradientTape() as inner:
        loss = loss_of()
    adam.apply(inner.gradient(loss, [w, b]), [w, b])

with rt.Tape() as tape:
    first = strategy.reduce("SUM", strategy.run(loss_of), axis=None)
    for _ in range(2):
        strategy.run(step)
    last = strategy.reduce("SUM", strategy.run(loss_of), axis=None)
tape.save(sys.argv[1], {"first": first, "last": last, "rate": adam.learning_rate})
print("outcome:true", flush=True)
os._exit(0)
"""


def after_two_steps(rate: float) -> float:
    """Return the loss of the same training in one process."""
    x, w, b = tf.constant([1.0, 2.0, 3.0, 4.0]), tf.Variable(0.0), tf.Variable(0.0)
    adam = keras.optimizers.Adam(rate)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((w * x + b - 2.0 * x) ** 2)
        adam.apply(tape.gradient(loss, [w, b]), [w, b])
    return float(tf.reduce_mean((w * x + b - 2.0 * x) ** 2))


def test_4_3_workers_save_their_shards_and_the_whole_is_differentiated(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    with started(tmp_path / "worker.py", tmp_path / "job") as processes:
        assert outcomes(processes, seconds=60) == [True, True]
    names = sorted(path.name for path in (tmp_path / "job").iterdir())
    assert [name[:20] for name in names] == ["manifest.json", "shard-00000-of-00002", "shard-00001-of-00002"]
    whole = rt.load(tmp_path / "job")
    # From zero, the loss of the whole batch is the mean of (w x + b - 2 x)²: by w, -4 mean(x²); by b, -4 mean(x).
    assert float(whole.gradient("first", "w")) == pytest.approx(-4.0 * (1 + 4 + 9 + 16) / 4.0, rel=1e-6)
    assert float(whole.gradient("first", "b")) == pytest.approx(-4.0 * 2.5, rel=1e-6)
    slope, step = float(whole.gradient("last", "rate", through_updates=True)), 1e-3
    difference = (after_two_steps(0.1 + step) - after_two_steps(0.1 - step)) / (2 * step)
    assert slope == pytest.approx(difference, rel=1e-3)
    assert float(whole["last"]) == pytest.approx(after_two_steps(0.1), rel=1e-6)
