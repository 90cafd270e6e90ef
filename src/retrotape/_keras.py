"""Keras' side: which Keras variable a `tf.Variable` belongs to, and when a layer is called.

A `tf.Variable` does not know the Keras variable around it, and only that one knows whether its layer is frozen. It is
told of here while a tape records:

==============================================  ==================================================================
`keras.Variable.value`, a property              every read of a Keras variable passes it
`keras.Layer.__call__`                          where a layer begins and ends
`self` in the frames of functions that run,     a `tf.function` that was traced before the tape began reads its
and what their `python_function` can see        variables without Keras
==============================================  ==================================================================

Nothing is hooked where Keras runs on another backend.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

from retrotape._closures import values_in
from retrotape._compatibility import check_keras
from retrotape._tf import tf, version
from retrotape.errors import KerasBackendError

_installed: list[tuple[Any, str, Any, Any]] = []  # owner, name, what was there, what is there now


def imported() -> Any | None:
    """Return Keras, if the program has imported it, on whatever backend."""
    keras = sys.modules.get("keras")
    whole = hasattr(keras, "Layer") and hasattr(keras, "Variable") and hasattr(keras, "backend")
    return keras if whole else None  # else not there, or half imported


def loaded() -> Any | None:
    """Return Keras, if the program has imported it and runs it on TensorFlow."""
    keras = imported()
    return keras if keras is not None and keras.backend.backend() == "tensorflow" else None


def refuse_other_backend(value: Any, role: str) -> None:
    """Raise if a value belongs to a Keras that runs on something else than TensorFlow: it cannot be recorded.

    Args:
      value: What the user gave: a variable, a tensor, an optimizer.
      role: What it was to be.
    """
    keras = imported()
    backend = "tensorflow" if keras is None else keras.backend.backend()
    if keras is None or backend == "tensorflow":
        return
    owners = (keras.Variable, keras.Layer, keras.optimizers.Optimizer)
    if isinstance(value, owners) or type(value).__module__.partition(".")[0].removesuffix("lib") == backend:
        raise KerasBackendError(backend, role, type(value).__name__)


def install(on_variable: Callable[[Any], None], on_layer: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Tell `on_variable` of each Keras variable that is read, and let `on_layer` run each call of a layer.

    Args:
      on_variable: Takes the variable.
      on_layer: Takes the name of the layer and what runs it, and returns what that returns.
    """
    keras = loaded()
    if keras is None:
        return
    check_keras(keras, version)
    for cls in keras.Variable.__mro__:
        value = vars(cls).get("value")
        if isinstance(value, property):
            _put(cls, "value", value, property(_noting(value.fget, on_variable), value.fset, value.fdel, value.__doc__))
            break
    call = vars(keras.Layer)["__call__"]
    _put(keras.Layer, "__call__", call, _scoped(call, on_layer))


def uninstall() -> None:
    """End what `install` began. What somebody else has put in its place meanwhile stays."""
    while _installed:
        owner, name, before, hook = _installed.pop()
        if vars(owner).get(name) is hook:
            setattr(owner, name, before)


def _put(owner: Any, name: str, before: Any, hook: Any) -> None:
    setattr(owner, name, hook)
    _installed.append((owner, name, before, hook))


def _noting(get: Any, on_variable: Callable[[Any], None]) -> Callable[[Any], Any]:
    @wraps(get)
    def value(self: Any) -> Any:
        if isinstance(self._value, tf.Variable):  # else it has no value yet
            on_variable(self)
        return get(self)

    return value


def _scoped(call: Any, on_layer: Callable[[str, Callable[[], Any]], Any]) -> Callable[..., Any]:
    @wraps(call)  # also its module, by which AutoGraph knows that it is not to be rewritten
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return on_layer(getattr(self, "name", type(self).__name__), lambda: call(self, *args, **kwargs))

    return __call__


def variables_around() -> Iterator[Any]:
    """Yield the Keras variables of layers that run now, or that a `tf.function` which runs now can see."""
    keras = loaded()
    frame: Any = sys._getframe(1)
    seen: set[int] = set()
    while keras is not None and frame is not None:
        owner: Any = frame.f_locals.get("self") if frame.f_code.co_argcount else None
        is_function = isinstance(owner, tf.types.experimental.PolymorphicFunction)
        for value in values_in(owner.python_function) if is_function else (owner,):
            if id(value) not in seen:
                seen.add(id(value))
                yield from _variables_of(value, keras)
        frame = frame.f_back


def _variables_of(value: Any, keras: Any) -> Iterator[Any]:
    """Yield the Keras variables of a layer, or of a list, a dictionary or an object that has some."""
    for item in (value, *_inside(value, keras)):
        if isinstance(item, keras.Layer):
            yield from item.variables
        elif isinstance(item, keras.Variable):
            yield item


def _inside(value: Any, keras: Any) -> Collection[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    plain = hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType, FunctionType, keras.Layer))
    return tuple(vars(value).values()) if plain else ()
