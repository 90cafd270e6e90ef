"""The losses of a compiled Keras model, one by one: Keras itself returns their sum."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from retrotape._types import Tensor
from retrotape.tf.core import tf

_of_thread = threading.local()  # replicas run on threads of their own


class _Observed:
    """A loss function whose results are noted while somebody collects them."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        self.loss = loss

    def __call__(self, *args: Any) -> Tensor:
        value = self.loss(*args)
        collected = getattr(_of_thread, "collected", None)
        if collected is not None:
            collected.append((self, value))
        return value


def losses(model: Any, **data: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a model, and its terms: one for each output, and the sum of those that layers added.

    Args:
      model: A compiled model with the `compute_loss` of Keras.
      data: The arguments of `compute_loss`.
    """
    compiled = model._compile_loss
    if compiled is not None:
        _observe(compiled)
    with _collected() as values:
        total = model.compute_loss(**data)
    terms: dict[str, Tensor] = {}
    if compiled is not None:
        if not tf.nest.is_nested(data["y"]) and not tf.nest.is_nested(data["y_pred"]):
            values = values[:1]  # Keras takes no more than one loss of one output
        found = {id(observed): value for observed, value in values}
        for entry in (one for one in compiled._flat_losses if id(one.loss) in found):
            value = tf.cast(found[id(entry.loss)], compiled.dtype)
            weighted = value if entry.loss_weights is None else value * tf.cast(entry.loss_weights, value.dtype)
            terms[_unused(entry.name or "loss", terms)] = weighted
    added = [model._aggregate_additional_loss(loss) for loss in model.losses]
    if added:
        terms[_unused("added", terms)] = tf.add_n(added)
    return total, terms


def _observe(compiled: Any) -> None:
    """Have the loss functions of a model noted, now or as soon as Keras has made them."""
    if compiled.built:
        compiled._flat_losses = [
            entry if isinstance(entry.loss, _Observed) else entry._replace(loss=_Observed(entry.loss))
            for entry in compiled._flat_losses
        ]
    elif "build" not in vars(compiled):
        build = compiled.build

        def build_and_observe(*args: Any) -> None:
            build(*args)
            vars(compiled).pop("build", None)
            _observe(compiled)

        vars(compiled)["build"] = build_and_observe


@contextmanager
def _collected() -> Iterator[list[tuple[_Observed, Tensor]]]:
    before = getattr(_of_thread, "collected", None)
    _of_thread.collected = []
    try:
        yield _of_thread.collected
    finally:
        _of_thread.collected = before


def _unused(name: str, taken: dict[str, Tensor]) -> str:
    names = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
    return next(one for one in names if one not in taken)


def forward(model: Any, x: Any) -> Any:
    """Return the output of a model while it is trained."""
    return model(x, training=True) if model._call_has_training_arg else model(x)


def track(model: Any, loss: Tensor, x: Any) -> None:
    """Update the mean that Keras shows as `loss`."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    batch = tf.shape(next(one for one in tf.nest.flatten(x) if one is not None))[0]
    model._loss_tracker.update_state(loss * tf.cast(replicas, loss.dtype), sample_weight=batch)
