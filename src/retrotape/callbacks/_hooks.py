"""Callbacks around the train function of a model: several of them, and none is left behind."""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType
from typing import Any
from weakref import finalize, ref

from retrotape.tf.keras_fit import callbacks_around, is_running


class Fit:
    """A `fit` that is running; to be made in `on_train_begin`.

    Args:
      on_end: Called when it has ended, however it did: callbacks are not notified when `fit` raises.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        around = callbacks_around()
        self._around = None if around is None else ref(around)
        if around is not None:  # which `fit` holds as long as it runs
            finalize(around, on_end)

    @property
    def is_running(self) -> bool:
        """Whether it is running: one that has raised may still be held, by the traceback of its exception."""
        around = None if self._around is None else self._around()
        return self._around is None or (around is not None and is_running(around))


class Hook:
    """A function in the place of the train function of a model.

    Attributes:
      train: The one before it, possibly another hook.
      fit: The `fit` that it is for.

    Args:
      call: What is called, with this hook and an iterator.
    """

    def __init__(self, model: Any, fit: Fit, call: Callable[[Hook, Any], Any]) -> None:
        self._model, self.fit, self._call = model, fit, call
        self.train: Callable[[Any], Any] = model.train_function
        model.train_function = self

    def __call__(self, iterator: Any) -> Any:
        """Call the function that stands in the place of the train function."""
        return self._call(self, iterator)

    def remove(self) -> None:
        """Take it away, also from below other hooks."""
        if self._model.train_function is self:
            self._model.train_function = self.train
        for outer in hooks_of(self._model):
            if outer.train is self:
                outer.train = self.train


def is_of_train_on_batch(iterator: Any) -> bool:
    """Return whether this is what `train_on_batch` calls the train function with; `fit` has iterators of `tf.data`."""
    return isinstance(iterator, GeneratorType)


def hooks_of(model: Any) -> list[Hook]:
    """Return the hooks of a model, the outermost first."""
    found, function = list[Hook](), model.train_function
    while isinstance(function, Hook):
        found.append(function)
        function = function.train
    return found


def remove_stale(model: Any) -> None:
    """Remove the hooks of every `fit` that has raised and is still held."""
    for hook in hooks_of(model):
        if not hook.fit.is_running:
            hook.remove()
