"""Help for Keras models: `rt.keras`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, TypeVar

from retrotape.aggregate import DWA, Aggregator, Combined, Rows, named
from retrotape.errors import TapeUseError
from retrotape.tape.compiled import compile
from retrotape.tape.live import Tape
from retrotape.tf import keras_api, keras_losses
from retrotape.tf.core import tf

_Model = TypeVar("_Model")
_STEPS = ("train_step", "test_step", "predict_step")


def playback(model: _Model, *, jit: bool = False, strict: bool = False, limit: int = 8, audit: bool = True) -> _Model:
    """Play the steps of `fit`, `evaluate` and `predict` back: each is recorded once, in eager code.

    A custom `train_step` is plain eager code, and can be debugged as such; metrics and callbacks work as usual.
    `model.train_step` is a `CompiledStep` afterwards: `model.train_step.recordings()` shows what was recorded.

    Args:
      model: A Keras model that was compiled with `run_eagerly=True`.
      jit: As for `rt.compile`.
      strict: As for `rt.compile`.
      limit: As for `rt.compile`.
      audit: As for `rt.compile`.

    Returns:
      The model.

    >>> model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", run_eagerly=True)
    >>> history = rt.keras.playback(model).fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=2, verbose=0)
    >>> model.train_step.recordings()[0].plays
    2
    """
    _check_model(model, "playback")
    if not getattr(model, "compiled", False) or not model.run_eagerly:  # type: ignore[attr-defined]
        raise TapeUseError(
            "playback records steps that run in eager code. First call `model.compile(..., run_eagerly=True)`."
        )
    options: dict[str, Any] = {"jit": jit, "strict": strict, "limit": limit, "audit": audit}
    for name in _STEPS:
        step = vars(model).get(name, getattr(model, name))
        setattr(model, name, compile(getattr(step, "__wrapped__", step), **options))
    _forget_functions(model)
    return model


def multi_task(model: _Model, aggregator: Aggregator | str, *, shared: Iterable[Any] | None = None) -> _Model:
    """Train a model with several losses in `fit` by one gradient for each of them, combined by a method.

    Each output that has a loss in `compile` counts as one, with its weight of `loss_weights`; what layers add
    (regularizers, `add_loss`) is one more, named "added". Metrics, sample weights, strategies, XLA and mixed precision
    work as usual. `rt.aggregate.Sum()` gives the steps of plain Keras. `rt.aggregate.DWA()` counts the epochs of `fit`.

    Args:
      model: A Keras model that was compiled, with the `train_step` and `compute_loss` of Keras.
      aggregator: The method, such as `rt.aggregate.UPGrad()`, or its name, such as "upgrad".
      shared: As in calling the method: which variables to combine; by default those that more than one loss depends on.

    Returns:
      The model.

    >>> x = tf.keras.Input([2])
    >>> trunk = tf.keras.layers.Dense(4, "tanh")(x)
    >>> outputs = {name: tf.keras.layers.Dense(1, name=name)(trunk) for name in ("near", "far")}
    >>> model = tf.keras.Model(x, outputs)
    >>> model.compile("sgd", {"near": "mse", "far": "mae"})
    >>> y = {"near": tf.ones([8, 1]), "far": tf.zeros([8, 1])}
    >>> history = rt.keras.multi_task(model, rt.aggregate.UPGrad()).fit(tf.ones([8, 2]), y, verbose=0)
    >>> sorted(history.history)
    ['far_loss', 'loss', 'near_loss']
    """
    keras = _check_model(model, "multi_task")
    method = named(aggregator) if isinstance(aggregator, str) else aggregator
    if not isinstance(method, Aggregator):
        raise TypeError(f"multi_task takes a method of rt.aggregate, got {method!r}: `rt.aggregate.UPGrad()`.")
    if not getattr(model, "compiled", False):
        raise TapeUseError("multi_task needs the losses of the model. First call `model.compile(optimizer, losses)`.")
    for name in ("train_step", "compute_loss"):
        own = name == "compute_loss" and name in vars(model)
        if own or getattr(type(model), name) is not getattr(keras.Model, name):
            raise TapeUseError(
                f"{type(model).__name__} has a `{name}` of its own, which multi_task would not call. Combine the "
                "gradients there: `rt.aggregate.UPGrad()(tape.backward_each(losses)).apply(self.optimizer)`."
            )
    variables = None if shared is None else list(shared)

    def train_step(data: Any) -> Any:
        skips = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)  # type: ignore[attr-defined]
        options: dict[str, Any] = {"shared": variables, "nonfinite": "keep" if skips else "raise"}
        return _step(model, partial(method, **options), *keras.utils.unpack_x_y_sample_weight(data))

    model.train_step = train_step  # type: ignore[attr-defined]
    fit: Any = getattr(model.fit, "uncounted", model.fit)  # type: ignore[attr-defined]
    if isinstance(method, DWA) and method.steps_per_epoch is None:
        model.fit = _counting(fit, method, keras)  # type: ignore[attr-defined]
    elif fit is not model.fit:  # type: ignore[attr-defined]
        model.fit = fit  # type: ignore[attr-defined]
    _forget_functions(model)
    return model


def _counting(fit: Callable[..., Any], method: DWA, keras: Any) -> Callable[..., Any]:
    """Return `fit` with a callback that ends the epochs of a method."""

    @wraps(fit)
    def counted(*args: Any, **options: Any) -> Any:
        given = inspect.signature(fit).bind(*args, **options)
        callbacks = given.arguments.get("callbacks") or []
        ends = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: method.end_epoch())
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(ends)
        else:
            given.arguments["callbacks"] = [*tf.nest.flatten(callbacks), ends]
        return fit(*given.args, **given.kwargs)

    counted.uncounted = fit  # type: ignore[attr-defined]
    return counted


def _step(model: Any, combine: Callable[[Rows], Combined], x: Any, y: Any, sample_weight: Any) -> Any:
    optimizer, one = model.optimizer, tf.constant(1.0)
    scale = optimizer.scale_loss(one)
    with Tape() as tape:
        y_pred = keras_losses.forward(model, x)
        total, losses = keras_losses.losses(model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        scaled = losses if scale is one else {name: loss * tf.cast(scale, loss.dtype) for name, loss in losses.items()}
    rows = tape.backward_each(scaled, model.trainable_weights)
    if scale is not one:  # not all methods are linear: they take the rows, and the losses, as they are without it
        rows = Rows([row * (1.0 / scale) for row in rows], rows.names, list(losses.values()))
    combined = combine(rows)
    (combined if scale is one else combined * scale).apply(optimizer)  # it divides by the scale
    keras_losses.track(model, total, x)
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _check_model(model: Any, caller: str) -> Any:
    """Return Keras; raise if this is not one of its models."""
    keras = keras_api.loaded()
    if keras is None or not isinstance(model, keras.Model):
        raise TypeError(
            f"{caller} takes a Keras model on the TensorFlow backend, got {type(model).__name__}: "
            f"`rt.keras.{caller}(model)`."
        )
    return keras


def _forget_functions(model: Any) -> None:
    for name in ("train_function", "test_function", "predict_function"):
        setattr(model, name, None)  # they are made anew when they are needed, and hold the steps
