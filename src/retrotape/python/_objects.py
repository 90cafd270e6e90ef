"""What containers, modules, classes and their objects refer to."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Callable, Collection
from enum import Enum, EnumMeta
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from retrotape.python._allowed import ARRAYS, BASES, CONTAINERS, GENERATORS, is_defined_in_python, why_impure_type
from retrotape.python._compare import (
    read_array,
    read_content,
    read_item,
    read_local,
    read_member,
    read_names,
    read_type,
)
from retrotape.python._namespace import Namespace
from retrotape.python._origin import LIBRARY, USER, of_class, of_code, of_module

if TYPE_CHECKING:
    from retrotape.python._walk import Walk

_MRO, _CLASS_SPACE = vars(type)["__mro__"].__get__, vars(type)["__dict__"].__get__
_HEAP_TYPE = 1 << 9
_NOT_LOOKED_UP = frozenset(("__abstractmethods__", "__annotations__", "__dict__", "__doc__", "__module__", "_abc_impl"))
# Attributes of objects of the standard library that count, where not all of them do.
_COUNTING: dict[type, tuple[str, ...]] = {
    logging.Logger: ("level", "disabled", "propagate", "parent", "manager"),
    logging.RootLogger: ("level", "disabled", "propagate", "parent", "manager"),
    logging.Manager: ("disable", "_disable"),
}
# Those of which nothing counts, even if code has the name.
_NOT_COUNTING = frozenset(("_cache", "loggerDict", "name")).__contains__


def unknown(kind: type) -> str:
    what = f"an object of type {kind.__module__}.{kind.__qualname__}"
    return f"{what}, whose state cannot be compared: pass what is read from it as an argument"


def state_of(generator: Any) -> Any:
    """Return the state of a generator of random numbers, as data that can be compared."""
    if isinstance(generator, random.Random):
        return random.Random.getstate(generator)
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    return _plain(getattr(generator, "bit_generator", generator).state)


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return tuple((name, _plain(part)) for name, part in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


# ------------------------------------------------------------------ containers


def container(walk: Walk, value: Any, base: type, label: str, owner: Any = None) -> None:
    """Note what a container contains; `owner` is the object that it is a part of."""
    content = read_content(value, base)
    if base is not tuple and base is not frozenset:
        walk.note(read_content, value, base, label, owner=value if owner is None else owner, value=content)
    if isinstance(value, defaultdict):
        walk.note(read_member, value, vars(defaultdict)["default_factory"], f"the default of {label}", owner=value)
        walk.follow(value.default_factory, f"the default of {label}")
    for one in content:
        walk.follow(one, f"an element of {label}")


def array(walk: Walk, value: Any, label: str) -> None:
    walk.arrays.append((value, getattr(value, "nbytes", len(value))))
    walk.note(read_array, value, None, label, owner=value)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        for one in read_array(value, None)[2]:
            walk.follow(one, f"an element of {label}")


# ------------------------------------------------------------------ modules


def module(walk: Walk, value: Any, label: str) -> None:
    space = vars(value)
    if value is sys and "modules" in walk.names:
        walk.refuse(value, label, "whose `sys.modules` it looks up: import modules by name")
    is_users = of_module(space.get("__name__")) == USER
    name = _name_of_users_module if is_users else _name_of_library_module
    walk.open(Namespace(value, space, label, name, is_whole=is_users, is_lazy=not is_users))


def _name_of_users_module(walk: Walk, namespace: Namespace, name: str) -> None:
    value = namespace.before[name]
    if name.startswith("_tfll_"):  # of a module of TensorFlow that is imported late: which one, and for whom
        return
    follow = name in walk.names or type(value) in CONTAINERS or is_defined_in_python(type(value))
    label = f"{namespace.label}.{name}"
    walk.note(read_item, namespace.space, name, label, owner=namespace.owner, value=value, follow=follow)


def _name_of_library_module(walk: Walk, namespace: Namespace, name: str) -> None:
    value = namespace.before[name]
    kind = type(value)
    if name.startswith("_tfll_"):
        return
    if kind is FunctionType:
        follow = of_code(value.__code__, value.__globals__) == USER
    elif issubclass(kind, type):
        follow = of_class(value) == USER or why_impure_type(value) is not None
    elif issubclass(kind, ModuleType):
        follow = True
    else:
        is_kept = kind.__module__.partition(".")[0] not in ("_frozen_importlib", "logging", "threading", "typing")
        is_kept = is_kept and (is_defined_in_python(kind) and not issubclass(kind, (*GENERATORS, type)))
        is_kept = is_kept and (of_class(kind) == USER or of_module(namespace.owner.__name__) != LIBRARY)
        follow = kind in CONTAINERS or kind in ARRAYS or is_kept
    label = f"{namespace.label}.{name}"
    walk.note(read_item, namespace.space, name, label, owner=namespace.owner, value=value, follow=follow)
    if value is os.getenv:
        walk.follow(os.environ, "os.environ")


# ------------------------------------------------------------------ classes and their objects


def class_object(walk: Walk, value: Any, label: str) -> None:
    if of_class(value) != USER:
        return
    for name in ("__mro__", "__name__"):
        walk.note(read_member, value, vars(type)[name], f"{value.__name__}.{name}", owner=value)
    for base in _MRO(value):
        if base is not value:
            walk.follow(base, base.__name__)
    space = _CLASS_SPACE(value)
    if not is_defined_in_python(value):
        return
    walk.note(read_names, space, None, f"the class {value.__name__}", owner=value)
    walk.follow(type(value), type(value).__name__)
    walk.open(Namespace(value, space, value.__name__, _name_of_class, is_whole=False))
    for name, member in list(space.items()):
        if _is_function(member) or (name == "_member_map_" and isinstance(value, EnumMeta)):
            _name_of_class(walk, walk.namespaces[-1], name)


def _is_function(member: Any) -> bool:
    return type(member) in (FunctionType, staticmethod, classmethod, property)


def _name_of_class(walk: Walk, namespace: Namespace, name: str) -> None:
    if name not in _NOT_LOOKED_UP:
        label, value = f"{namespace.label}.{name}", namespace.before[name]
        walk.note(read_item, namespace.space, name, label, owner=namespace.owner, value=value, follow=True)


def instance(
    walk: Walk, value: Any, kind: type, label: str, skipped: Callable[[str], bool] = lambda name: False
) -> None:
    """Note the attributes of an object, and what it contains if its class is derived from a container."""
    solid = next(one for one in _MRO(kind) if not is_defined_in_python(one))
    if solid in CONTAINERS:
        container(walk, value, CONTAINERS[solid], label)
    elif solid not in BASES and not (issubclass(solid, BaseException) and _has_only_args(solid)):
        walk.refuse(value, label, unknown(kind))
        return
    if issubclass(solid, BaseException):
        descriptor = vars(BaseException)["args"]
        walk.note(read_member, value, descriptor, f"{label}.args", owner=value, follow=True)
    walk.follow(kind, kind.__name__)
    if kind.__flags__ & _HEAP_TYPE:
        walk.note(read_type, value, None, f"the class of {label}", owner=value)
    counting = _COUNTING.get(kind)
    # Fields of `attrs` are read by `tf.nest`, without a name in any code.
    is_users = of_class(kind) == USER and not issubclass(kind, Enum) and not hasattr(kind, "__attrs_attrs__")
    attributes(walk, value, kind, label, every=not is_users, counting=counting, skipped=skipped)
    for base in _MRO(kind):
        for name, member in list(_CLASS_SPACE(base).items()):
            if type(member) is types.MemberDescriptorType and is_defined_in_python(base):
                walk.note(read_member, value, member, f"{label}.{name}", owner=value, follow=True)


def _has_only_args(kind: type) -> bool:
    """Return whether exceptions of a type in C have nothing but their arguments."""
    return kind.__basicsize__ == BaseException.__basicsize__


def attributes(
    walk: Walk,
    value: Any,
    kind: type,
    label: str,
    *,
    every: bool,
    counting: Collection[str] | None = None,
    skipped: Callable[[str], bool] = lambda name: False,
) -> None:
    """Note the attributes of an object: those that code names, or all.

    Args:
      walk: The walk.
      value: The object.
      kind: Its type.
      label: What a message calls it.
      every: Whether all count.
      counting: The names of those that count always, if others do so only where code names them.
      skipped: Tells which never do, by name.
    """
    space = space_of(walk, value, kind, label)
    if space is None:
        return
    if counting is not None:
        for name in counting:
            walk.note(read_item, space, name, f"{label}.{name}", owner=value, follow=True)
        rest = Namespace(value, space, label, _name_of_object, is_whole=False, may_miss=True, skipped=_NOT_COUNTING)
        walk.open(rest)
        return
    of_class = {name for base in _MRO(kind) if base is not object for name in _CLASS_SPACE(base)}
    namespace = Namespace(value, space, label, _name_of_object, of_class, is_sized=True, skipped=skipped)
    walk.open(namespace, every)


def _name_of_object(walk: Walk, namespace: Namespace, name: str) -> None:
    label, value = f"{namespace.label}.{name}", namespace.before[name]
    walk.note(read_item, namespace.space, name, label, owner=namespace.owner, value=value, follow=True)


def space_of(walk: Walk, value: Any, kind: type, label: str) -> dict[str, Any] | None:
    """Return the dictionary of an object, and note that it is this one; None if it has none."""
    if issubclass(kind, threading.local):  # each thread has another one
        space = read_local(value, None)
        walk.note(read_local, value, None, f"{label}.__dict__", owner=value, value=space)
        return space
    found = (_CLASS_SPACE(base)["__dict__"] for base in _MRO(kind) if "__dict__" in _CLASS_SPACE(base))
    descriptor = next(found, None)
    if descriptor is None and not kind.__dictoffset__:
        return None
    if type(descriptor) not in (types.GetSetDescriptorType, types.MemberDescriptorType):
        walk.refuse(value, label, "whose class defines `__dict__`: pass what is read from it as an argument")
        return None
    space = read_member(value, descriptor)
    if type(space) is not dict:
        walk.refuse(value, label, "whose `__dict__` is no plain dictionary: pass what is read from it as an argument")
        return None
    walk.note(read_member, value, descriptor, f"{label}.__dict__", owner=value, value=space)
    return space
