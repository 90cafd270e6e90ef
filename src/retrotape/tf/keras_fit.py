"""Hooks in Keras' `fit`: what each step is given, and which losses it computes.

`Model.make_train_function` builds the function that `fit` calls. It passes the step on one batch, already compiled,
through `Model._autoconvert_optionals`, and calls the result for each batch: outside of XLA, in cross-replica context,
and inside the loop of `steps_per_execution`. That is where batches are observed. The method is replaced on the model
only while the function is built, so nothing has to be undone when `fit` raises.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from retrotape._locks import new_lock
from retrotape.errors import IncompatibleTensorFlowError
from retrotape.tf import private_names
from retrotape.tf.compatibility import problems, shown
from retrotape.tf.core import StockTape, tf, version
from retrotape.tf.keras_api import imported

_HOOK = "_autoconvert_optionals"


def check_fit(keras: Any) -> None:
    """Raise if the batches that `fit` trains on cannot be observed in this version of Keras."""
    found = problems(private_names.FIT)
    if found:
        raise IncompatibleTensorFlowError(version, "; ".join(found), shown(getattr(keras, "__version__", None)))


def make_train_function(model: Any, on_batch: Callable[[Any], list[Any]]) -> Callable[[Any], Any] | None:
    """Return a new train function of a model, which calls `on_batch` with each batch, in eager code or in a graph.

    The step waits for the operations that `on_batch` returns. The model keeps the function that it has. None if the
    model builds its function in a way of its own.
    """
    before, seen = model.train_function, []
    original = getattr(model, _HOOK)

    def observed(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        seen.append(step)

        @tf.autograph.experimental.do_not_convert
        def on_each(data: Any) -> Any:
            with tf.control_dependencies(on_batch(data)):
                return step(data)

        return original(on_each)

    object.__setattr__(model, _HOOK, observed)  # Keras' own `__setattr__` would track it
    try:
        model.make_train_function(force=True)
        return model.train_function if len(seen) == 1 else None
    finally:
        object.__delattr__(model, _HOOK)
        model.train_function = before


def is_of_keras(function: Any) -> bool:
    """Return whether a train function is one that Keras has made, and can make again."""
    return function is None or getattr(function, "__module__", "").split(".")[0] == "keras"


def callbacks_around() -> Any | None:
    """Return the list of callbacks that calls this one; `fit` holds it to its end, however that comes."""
    keras = imported()
    frame: Any = sys._getframe(1)
    while keras is not None and frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_argcount else None
        if isinstance(owner, keras.callbacks.CallbackList):
            return owner
        frame = frame.f_back
    return None


def is_running(callbacks: Any) -> bool:
    """Return whether the `fit` that made this list of callbacks is running, on any thread.

    One that has raised may still be referenced, by the traceback of its exception, but it is on no stack.
    """
    frame: Any
    for frame in sys._current_frames().values():
        while frame is not None:
            of_keras = frame.f_globals.get("__name__", "").split(".")[0] == "keras"  # this function has it too
            if of_keras and any(value is callbacks for value in frame.f_locals.values()):
                return True
            frame = frame.f_back
    return False


@contextmanager
def observed_losses(model: Any, on_loss: Callable[[Any], None], on_target: Callable[[Any], None]) -> Iterator[None]:
    """Call `on_loss` with each result of `model.compute_loss`, and `on_target` with each target of a stock tape.

    Targets of stock tapes on other threads, also of other models, are among them: a replica has a thread of its own.
    """
    compute, had = model.compute_loss, vars(model).get("compute_loss")

    def compute_loss(*args: Any, **options: Any) -> Any:
        loss = compute(*args, **options)
        on_loss(loss)
        return loss

    object.__setattr__(model, "compute_loss", compute_loss)
    _targets.add(on_target)
    try:
        yield
    finally:
        _targets.remove(on_target)
        if had is None:
            object.__delattr__(model, "compute_loss")
        else:
            object.__setattr__(model, "compute_loss", had)


class _Targets:
    """Who wants to know the targets of stock tapes; their method is replaced while there is somebody.

    Several threads may observe at once: the first replaces the method, and the last puts it back.
    """

    def __init__(self) -> None:
        self._lock, self._observers = new_lock(), list[Callable[[Any], None]]()
        self._gradient: Any = None

    def add(self, observer: Callable[[Any], None]) -> None:
        with self._lock:
            if not self._observers:
                self._gradient = gradient = StockTape.gradient

                def observed(tape: Any, target: Any, *args: Any, **options: Any) -> Any:
                    for one in tuple(self._observers):
                        one(target)
                    return gradient(tape, target, *args, **options)

                StockTape.gradient = observed
            self._observers.append(observer)

    def remove(self, observer: Callable[[Any], None]) -> None:
        with self._lock:
            self._observers.remove(observer)
            if not self._observers:
                StockTape.gradient = self._gradient


_targets = _Targets()
