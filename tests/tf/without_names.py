"""A TensorFlow or Keras without one of its private names, or with other parameters, as a newer version might be."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from retrotape.tf.compatibility import PrivateName, owner_of

Set = Callable[[Any, str, Any], None]
Delete = Callable[[Any, str], None]
RENAMED = "renamed_in_a_newer_version"


def remove(private: PrivateName, set_: Set = setattr, delete: Delete = delattr) -> None:
    """Take a name away from where it is defined, and from the methods of a class that use it."""
    owner = owner_of(private)
    for place in getattr(owner, "__mro__", [owner]):
        if private.name in vars(place):
            delete(place, private.name)
    for function in methods(owner) if inspect.isclass(owner) else ():
        names = function.__code__.co_names
        if private.name in names:
            renamed = tuple(RENAMED if name == private.name else name for name in names)
            set_(function, "__code__", function.__code__.replace(co_names=renamed))


def methods(owner: type) -> list[Any]:
    found = [getattr(member, "fget", member) for cls in owner.__mro__ for member in vars(cls).values()]
    unwrapped = [inspect.unwrap(member) for member in found if callable(member)]
    return list({id(member): member for member in unwrapped if hasattr(member, "__code__")}.values())


def is_written_in_python(private: PrivateName) -> bool:
    found = getattr(owner_of(private), private.name, None)
    return inspect.isfunction(inspect.unwrap(found)) if callable(found) else False


def change_parameters(private: PrivateName, change: Callable[[list], list], set_: Set = setattr) -> None:
    """Let a function take other parameters."""
    owner = owner_of(private)
    before = getattr(owner, private.name)
    signature = inspect.signature(before)

    def changed(*args: Any, **kwargs: Any) -> Any:
        return before(*args, **kwargs)

    changed.__signature__ = signature.replace(parameters=change(list(signature.parameters.values())))  # type: ignore
    set_(owner, private.name, changed)


def with_one_more(parameters: list) -> list:
    """As TensorFlow adds them: optional, at the end."""
    kind = inspect.Parameter.KEYWORD_ONLY if parameters[-1:] and parameters[-1].kind > 1 else parameters[-1].kind
    return [*parameters, inspect.Parameter("added", kind, default=None)]


def with_another_first(parameters: list) -> list:
    return [inspect.Parameter("added", inspect.Parameter.POSITIONAL_OR_KEYWORD), *parameters]
