"""Hooks in Keras: which Keras variable owns a `tf.Variable`, and when a layer is called.

A `tf.Variable` has no reference to the Keras variable that owns it, and only that one knows whether its layer is
frozen. While a tape records, the owner is found from:

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

from retrotape.errors import KerasBackendError
from retrotape.tf import hook_table
from retrotape.tf.closures import values_in
from retrotape.tf.compatibility import check_keras
from retrotape.tf.core import PlainVariable, attributes_of, tf, version
from retrotape.tf.hook_table import original


def imported() -> Any | None:
    """Return Keras if the program has imported it, with any backend."""
    keras = sys.modules.get("keras")
    whole = hasattr(keras, "Layer") and hasattr(keras, "Variable") and hasattr(keras, "backend")
    return keras if whole else None  # else not imported, or only partially


def loaded() -> Any | None:
    """Return Keras if the program has imported it with the TensorFlow backend."""
    keras = imported()
    return keras if keras is not None and keras.backend.backend() == "tensorflow" else None


def refuse_other_backend(value: Any, role: str) -> None:
    """Raise if a value belongs to Keras with another backend than TensorFlow: it cannot be recorded.

    Args:
      value: A variable, tensor or optimizer from user code.
      role: What it was passed as.
    """
    keras = imported()
    backend = "tensorflow" if keras is None else keras.backend.backend()
    if keras is None or backend == "tensorflow":
        return
    owners = (keras.Variable, keras.Layer, keras.optimizers.Optimizer)
    if isinstance(value, owners) or type(value).__module__.partition(".")[0].removesuffix("lib") == backend:
        raise KerasBackendError(backend, role, type(value).__name__)


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables that an optimizer updates."""
    return list(optimizer._trainable_variables)


# Settings of Keras that decide which ops layers run: those of a thread, and those of the process.
_OF_THREAD = ("autocast_scope", "dtype_policy", "flash_attention", "global_seed_generator")
_OF_PROCESS = ("_EPSILON", "_FLOATX", "_IMAGE_DATA_FORMAT")


def settings() -> list[tuple[dict[str, Any], str]]:
    """Return the settings of Keras: each as a namespace, and a name there."""
    if loaded() is None:
        return []
    state, config = (sys.modules[f"keras.src.backend.{name}"] for name in ("common.global_state", "config"))
    own = vars(state.GLOBAL_STATE_TRACKER)
    found = [(vars(state), "GLOBAL_STATE_TRACKER")]  # replaced by `keras.utils.clear_session`
    return [*found, *((own, name) for name in _OF_THREAD), *((vars(config), name) for name in _OF_PROCESS)]


def is_stateless() -> bool:
    """Return whether a `keras.StatelessScope` is open: then Keras assigns to no variable."""
    module = sys.modules.get("keras.src.backend.common.stateless_scope")
    return module is not None and bool(module.in_stateless_scope())


_hooked: Any = None  # Keras, once its hooks are in the table


def add_hooks(on_variable: Callable[[Any], None], on_layer: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Call `on_variable` for each Keras variable that is read, and run each layer call through `on_layer`.

    Keras may be imported at any time. Calling this again adds nothing.

    Args:
      on_variable: Takes the variable.
      on_layer: Takes the name of the layer and a function that runs it, and returns its result.
    """
    global _hooked
    keras = None if _hooked is not None else loaded()
    if keras is None:
        return
    check_keras(keras, version)
    owner = next(cls for cls in keras.Variable.__mro__ if isinstance(vars(cls).get("value"), property))
    layer: tuple[Any, str] = keras.Layer, "__call__"
    wrapped = _wrapped_by(vars(keras.Layer)["__call__"])
    if wrapped is not None:
        layer = wrapped, "function"
    hook_table.add_hooks((owner, "value", _observed(owner, on_variable)), (*layer, _scoped(*layer, on_layer)))
    _hooked = keras


class _Wrapped:
    """A function inside its wrapper, where it can be replaced.

    The wrapper stays what it is. Assigning `__call__` of a class would update the types of all its subclasses, some 200
    for `keras.Layer`.
    """

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def _set(self, function: Any) -> None:
        self._cell.cell_contents = function

    function = property(lambda self: self._cell.cell_contents, _set)


def _wrapped_by(function: Any) -> _Wrapped | None:
    """Return the function that a decorator without arguments has wrapped; None if it cannot be found."""
    inner = getattr(function, "__wrapped__", None)
    found = [cell for cell in getattr(function, "__closure__", None) or () if cell.cell_contents is inner]
    return _Wrapped(found[0]) if inner is not None and len(found) == 1 else None


def _observed(owner: Any, on_variable: Callable[[Any], None]) -> property:
    before: property = vars(owner)["value"]
    assert before.fget is not None

    @wraps(before.fget)
    def value(self: Any) -> Any:
        if type(self._value) is PlainVariable or isinstance(self._value, tf.Variable):  # else it has no value yet
            on_variable(self)
        return original[owner, "value"].fget(self)

    return property(value, before.fset, before.fdel, before.__doc__)


def _scoped(owner: Any, name: str, on_layer: Callable[[str, Callable[[], Any]], Any]) -> Callable[..., Any]:
    @wraps(getattr(owner, name))  # also its module, by which AutoGraph knows not to convert it
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = original[owner, name]
        return on_layer(getattr(self, "name", type(self).__name__), lambda: call(self, *args, **kwargs))

    return __call__


def variables_around() -> Iterator[Any]:
    """Yield the Keras variables of layers on the call stack, and in the scope of `tf.function`s on it."""
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
    """Yield the Keras variables of a layer, or of a container or object with layers or variables."""
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
    if isinstance(value, (type, ModuleType, FunctionType, keras.Layer)):
        return ()
    return tuple(attributes_of(value).values())
