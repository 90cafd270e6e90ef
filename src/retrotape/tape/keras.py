"""Help for Keras models: `rt.keras`."""

from __future__ import annotations

from typing import Any, TypeVar

from retrotape.errors import TapeUseError
from retrotape.tape.compiled import compile
from retrotape.tf import keras_api

_Model = TypeVar("_Model")
_STEPS = ("train_step", "test_step", "predict_step")


def playback(model: _Model, *, jit: bool = False, strict: bool = False, limit: int = 8) -> _Model:
    """Play the steps of `fit`, `evaluate` and `predict` back: each is recorded once, in eager code.

    A custom `train_step` is plain eager code, and can be debugged as such; metrics and callbacks work as usual.
    `model.train_step` is a `CompiledStep` afterwards: `model.train_step.recordings()` shows what was recorded.

    Args:
      model: A Keras model that was compiled with `run_eagerly=True`.
      jit: As for `rt.compile`.
      strict: As for `rt.compile`.
      limit: As for `rt.compile`.

    Returns:
      The model.

    >>> model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", run_eagerly=True)
    >>> history = rt.keras.playback(model).fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=2, verbose=0)
    >>> model.train_step.recordings()[0].plays
    2
    """
    keras = keras_api.loaded()
    if keras is None or not isinstance(model, keras.Model):
        raise TypeError(
            f"playback takes a Keras model on the TensorFlow backend, got {type(model).__name__}: "
            "`rt.keras.playback(model)`."
        )
    if not getattr(model, "compiled", False) or not model.run_eagerly:
        raise TapeUseError(
            "playback records steps that run in eager code. First call `model.compile(..., run_eagerly=True)`."
        )
    options: dict[str, Any] = {"jit": jit, "strict": strict, "limit": limit}
    for name in _STEPS:
        step = vars(model).get(name, getattr(model, name))
        setattr(model, name, compile(getattr(step, "__wrapped__", step), **options))
    for name in ("train_function", "test_function", "predict_function"):
        setattr(model, name, None)  # they are made anew when they are needed, and hold the steps
    return model
