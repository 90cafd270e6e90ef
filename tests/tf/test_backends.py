"""Keras on something else than TensorFlow: the error says so, where its variables or arrays are given to a query."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors

TEXT = (
    r"^Keras runs on {} here; retrotape needs KERAS_BACKEND=tensorflow\. Got {} as {}\. "
    r"Set it before Keras is imported: `os\.environ\['KERAS_BACKEND'\] = 'tensorflow'`\.$"
)


class Variable:
    """As a Keras variable is on another backend: its value is no `tf.Variable`."""

    _value = 3.0


class Optimizer:
    built = True

    def apply(self, *_: Any) -> None:
        raise AssertionError("it must not come so far")


@pytest.fixture(params=["jax", "torch"])
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let Keras be one that runs on another backend, which need not be installed."""
    keras = ModuleType("keras")
    keras.__file__ = None
    keras.Variable, keras.Layer = Variable, type("Layer", (), {})  # type: ignore[attr-defined]
    keras.backend = SimpleNamespace(backend=lambda: request.param)  # type: ignore[attr-defined]
    keras.optimizers = SimpleNamespace(Optimizer=Optimizer)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keras", keras)
    return request.param


NAMES = {"jax": "JAX", "torch": "torch"}


def test_a_variable_of_another_backend_as_source(other: str) -> None:
    x = tf.constant(2.0)
    with rt.Tape() as tape:  # recording TensorFlow is nobody's business
        y = x * x
    assert float(tape.gradient(y, x)) == 4.0
    with pytest.raises(errors.KerasBackendError, match=TEXT.format(NAMES[other], "Variable", "source")):
        tape.gradient(y, [x, Variable()])
    with pytest.raises(errors.KerasBackendError, match=TEXT.format(NAMES[other], "Variable", "source")):
        tape.backward(y, [Variable()])
    with pytest.raises(errors.KerasBackendError, match=TEXT.format(NAMES[other], "Variable", "watched value")):
        tape.watch(Variable())


def test_an_array_of_another_backend_as_target(other: str) -> None:
    array = type("ArrayImpl", (), {"__module__": {"jax": "jaxlib._jax", "torch": "torch"}[other]})()
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        _ = x * x
    with pytest.raises(errors.KerasBackendError, match=TEXT.format(NAMES[other], "ArrayImpl", "target")):
        tape.gradient(array, x)
    with pytest.raises(errors.NotASourceError):  # what has nothing to do with it
        tape.gradient(object(), x)


def test_an_optimizer_of_another_backend(other: str) -> None:
    v = tf.Variable(1.0)
    with pytest.raises(errors.KerasBackendError, match=TEXT.format(NAMES[other], "Optimizer", "optimizer")):
        rt.Gradients([(v, tf.constant(1.0))]).apply(Optimizer())
