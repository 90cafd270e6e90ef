"""Values that other libraries read while this one is on the stack: between the user and the reader."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

_GATE = """
import keras, tensorflow as tf

class Gate(keras.layers.Layer):
    def call(self, x):
        return x * 2.0 if bool(tf.reduce_sum(x) > 0.0) else x * 3.0

@tf.custom_gradient
def gated(x):
    return x * 1.0, lambda dy: dy * 2.0 if bool(tf.reduce_sum(dy) > 0.0) else dy * 3.0
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a package that is installed."""
    folder = tmp_path / "lib" / "site-packages" / "gates_for_tests"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(_GATE)
    monkeypatch.syspath_prepend(str(folder.parent))
    import gates_for_tests  # type: ignore[import-not-found]

    yield gates_for_tests
    del sys.modules["gates_for_tests"]


def _saved(tape: rt.Tape, path: Path, **names) -> rt.tape.LoadedTape:
    tape.save(path, names)
    return rt.load(path)


def test_a_layer_of_an_installed_package(package, tmp_path: Path):
    gate, x = package.Gate(), tf.constant([1.0, 1.0])
    with rt.Tape() as tape:
        y = gate(x)
    loaded = _saved(tape, tmp_path / "step.tape", x=x, y=y)
    assert loaded.replay({"x": [2.0, 2.0]})["y"].numpy().tolist() == [4.0, 4.0]
    with pytest.raises(rt.errors.ReplayError, match="Python read a value"):
        loaded.replay({"x": [-1.0, -1.0]})


def test_a_backward_function_of_an_installed_package(package, tmp_path: Path):
    x, seed = tf.constant([1.0, 1.0]), tf.constant([1.0, 1.0])
    with rt.Tape() as tape:
        with rt.Tape() as inner:
            y = package.gated(x)
        grad = inner.gradient(y, x, output_gradients=seed * 1.0)
    with pytest.raises(rt.errors.NotPersistableError, match="branches on the value of a gradient"):
        tape.save(tmp_path / "step.tape", {"seed": seed, "grad": grad})


@pytest.mark.parametrize("ours", [True, False], ids=["Gradients.apply", "apply_gradients"])
@pytest.mark.parametrize("kind", ["accumulation", "loss scale"])
def test_what_an_optimizer_reads(kind: str, ours: bool, tmp_path: Path):
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2 if kind == "accumulation" else None)
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if kind == "loss scale" else optimizer
    w, x = tf.Variable([1.0, 2.0], name="w"), tf.constant([1.0, 1.0])
    optimizer.build([w])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w * w * x)
        if ours:
            tape.backward(loss).apply(optimizer)
        else:
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    counted = {"counter": optimizer.variables[0]} if kind == "accumulation" else {}
    loaded = _saved(tape, tmp_path / "step.tape", x=x, loss=loss, **counted)
    loaded.replay({"x": [1.0, 2.0]})
    with pytest.raises(rt.errors.ReplayError, match="Python read a value"):
        loaded.replay({"x": [np.nan, 1.0]} if kind == "loss scale" else {"counter": 1})
