"""Tapes as SavedModels, read by TensorFlow alone, and as graphs for TensorBoard."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors


@tf.custom_gradient
def wrong_on_purpose(x):
    return tf.sin(x), lambda upstream: upstream * 3.0 * tf.cos(x)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    layer = tf.keras.layers.Dense(2, activation="silu", kernel_initializer="ones", name="line")
    model = tf.keras.Sequential([tf.keras.Input((2,)), layer], name="model")
    x = tf.constant([[0.5, -0.2], [1.0, 0.3]])
    with rt.Tape() as tape:
        out = wrong_on_purpose(model(x)) * tf.random.normal((2, 2), seed=1)
        loss = tf.reduce_sum(out**2)
    path = tmp_path_factory.mktemp("models") / "exported"
    tape.export_saved_model(path, {"x": x, "out": out, "loss": loss})
    return path, tape, x, out, loss, layer


def test_results_and_gradients_are_those_of_the_tape(exported):
    path, tape, x, out, loss, layer = exported
    module = tf.saved_model.load(str(path))
    found = module.replay({"x": x})
    np.testing.assert_allclose(found["out"], out, rtol=1e-6)
    np.testing.assert_allclose(found["loss"], loss, rtol=1e-6)
    assert set(module.signatures) == {"serving_default", "gradient_of_loss"}
    grads = module.signatures["gradient_of_loss"](x=x)
    np.testing.assert_allclose(grads["x"], tape.gradient(loss, x), rtol=1e-5)
    np.testing.assert_allclose(grads["model_line_kernel"], tape.gradient(loss, layer.kernel), rtol=1e-5)


def test_other_inputs_are_those_of_a_replay(exported):
    path, tape, x, _, loss, _ = exported
    other = tf.constant([[0.1, 0.2], [0.3, 0.4]])
    again = tape.replay([(x, other)])
    module = tf.saved_model.load(str(path))
    np.testing.assert_allclose(module.replay({"x": other})["loss"], again.value(loss), rtol=1e-6)
    grads = module.signatures["gradient_of_loss"](x=other)
    np.testing.assert_allclose(grads["x"], again.gradient(loss, x), rtol=1e-5)


def test_a_process_without_this_library_reads_it(exported):
    path, tape, x, _, loss, _ = exported
    code = f"""
        import sys
        sys.modules["retrotape"] = None
        import tensorflow as tf
        module = tf.saved_model.load({str(path)!r})
        x = tf.constant([[0.5, -0.2], [1.0, 0.3]])
        print(module.signatures["gradient_of_loss"](x=x)["x"].numpy().ravel().tolist())
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    np.testing.assert_allclose(eval(ran.stdout.splitlines()[-1]), np.ravel(tape.gradient(loss, x)), rtol=1e-5)


def test_something_needs_a_name(tmp_path):
    x = tf.constant(1.0)
    with rt.Tape() as tape:
        tf.sin(x)
    with pytest.raises(errors.TapeUseError, match="Name at least one result to export"):
        tape.export_saved_model(tmp_path / "m", {"x": x})


def test_the_graph_is_there_for_tensorboard(exported, tmp_path):
    _, tape, x, out, _, _ = exported
    tape.export_graph(tmp_path, {"x": x, "out": out})
    (file,) = tmp_path.glob("events.*")
    kinds = set()
    for record in tf.data.TFRecordDataset(str(file)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        if event.graph_def:
            kinds |= {node.op for node in tf.compat.v1.GraphDef.FromString(event.graph_def).node}
    assert {"MatMul", "Sin"} <= kinds
