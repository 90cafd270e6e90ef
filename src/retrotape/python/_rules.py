"""What values refer to, by their type: the rules of a walk. A type without a rule is refused."""

from __future__ import annotations

import functools
import gc
import random
import types
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from operator import attrgetter, methodcaller
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from retrotape.python._allowed import (
    ARRAYS,
    BASES,
    CONTAINERS,
    GENERATORS,
    OPAQUE,
    is_defined_in_python,
    why_impure,
    why_impure_type,
)
from retrotape.python._compare import read_cell, read_context, read_member
from retrotape.python._objects import array, class_object, container, instance, module, state_of, unknown
from retrotape.python._origin import USER, of_class, of_code

if TYPE_CHECKING:
    from retrotape.python._walk import Walk

_Rule = Callable[["Walk", Any, str], None]
_OF_FUNCTIONS = [vars(FunctionType)[name] for name in ("__code__", "__defaults__", "__kwdefaults__")]
_CACHED = type(functools.lru_cache(len))
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def visit(walk: Walk, value: Any, kind: type, label: str) -> None:
    """Note what a value refers to, or refuse it."""
    rule = _RULES.get(kind)
    if rule is not None:
        rule(walk, value, label)
    elif kind in CONTAINERS:
        container(walk, value, CONTAINERS[kind], label)
    elif kind in OPAQUE:
        pass
    elif issubclass(kind, type):
        reason = why_impure_type(value)
        if reason is not None:
            walk.refuse(value, label, f"by which {reason}: do that outside, and pass in what it gives")
        class_object(walk, value, label)
    elif issubclass(kind, ModuleType) and of_class(kind) != USER:
        module(walk, value, label)
    elif issubclass(kind, GENERATORS):
        walk.generators.append((value, state_of(value)))
        if is_defined_in_python(kind) and kind is not random.Random:
            instance(walk, value, kind, label)
    elif kind in ARRAYS:
        array(walk, value, label)
    elif hasattr(kind, "__next__") and not is_defined_in_python(kind):
        walk.refuse(value, label, "an iterator: pass what it yields instead")
    elif _stands_for_another(walk, value, kind, label):
        pass
    elif is_defined_in_python(kind) or issubclass(kind, BaseException) or kind in BASES:
        instance(walk, value, kind, label)
    else:
        walk.refuse(value, label, unknown(kind))


def _stands_for_another(walk: Walk, value: Any, kind: type, label: str) -> bool:
    """Note what an object proxy stands for; return whether it is one."""
    own = [member for base in kind.__mro__ for member in vars(base).values()]
    own = [one for one in own if type(one) is types.GetSetDescriptorType]
    parts = [one for one in own if one.__name__ == "__wrapped__" or one.__name__.startswith("_self_")]
    if not any(one.__name__ == "__wrapped__" for one in parts):
        return False
    for one in parts:
        walk.note(read_member, value, one, label, owner=value, follow=True)
    return True


# ------------------------------------------------------------------ references


def _proxy(walk: Walk, value: Any, label: str) -> None:
    for one in gc.get_referents(value):
        walk.follow(one, label)


def _reference(walk: Walk, value: Any, label: str) -> None:
    referred = value()
    if referred is None or not issubclass(type(referred), (type, FunctionType)):  # these stay
        walk.refuse(value, label, "a weak reference: pass what it refers to as an argument")


def _context(walk: Walk, value: Any, label: str) -> None:
    walk.note(read_context, value, None, label, owner=value, follow=True)


# ------------------------------------------------------------------ functions


def _function(walk: Walk, value: Any, label: str) -> None:
    code = value.__code__
    walk.functions.setdefault(id(code), []).append(value)
    if id(code) in walk.codes:
        function_started(walk, value)
    elif of_code(code, value.__globals__) != USER:
        held = [read_cell(cell, None) for cell in value.__closure__ or ()]
        wrapped = [one for one in held if isinstance(one, (FunctionType, types.MethodType, functools.partial))]
        wrapped += [vars(value)[name] for name in ("__wrapped__", "registry") if name in vars(value)]
        for one in wrapped:
            walk.follow(one, label)
    elif vars(value):
        container(walk, vars(value), dict, f"{value.__name__}.__dict__", value)


def function_started(walk: Walk, value: Any) -> None:
    """Note what a function refers to whose code is about to run."""
    for descriptor in _OF_FUNCTIONS:
        label = f"{value.__name__}.{descriptor.__name__}"
        walk.note(read_member, value, descriptor, label, owner=value, follow=descriptor is not _OF_FUNCTIONS[0])
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        walk.note(read_cell, cell, "", f"{name!r} in the closure of {value.__name__!r}", owner=cell, follow=True)
    if vars(value):
        container(walk, vars(value), dict, f"{value.__name__}.__dict__", value)


def _method(walk: Walk, value: Any, label: str) -> None:
    walk.follow(value.__self__, "self")
    walk.follow(value.__func__, label)


def _method_wrapper(walk: Walk, value: Any, label: str) -> None:
    walk.follow(value.__self__, label)


def _c_function(walk: Walk, value: Any, label: str) -> None:
    owner = value.__self__
    reason = why_impure(value, owner)
    if reason is not None:
        what = f"by which {reason}: call it outside, and pass in what it returns"
        walk.refuse(value, label, f"`{value.__name__}`, {what}")
    elif owner is not None and type(owner) is not ModuleType:
        walk.follow(owner, label)


def _partial(walk: Walk, value: Any, label: str) -> None:
    for part in (value.func, value.args, value.keywords):
        walk.follow(part, label)
    if vars(value):
        container(walk, vars(value), dict, f"{label}.__dict__", value)


def _wrapped(walk: Walk, value: Any, label: str) -> None:
    walk.follow(value.__func__, label)


def _property(walk: Walk, value: Any, label: str) -> None:
    for one in (value.fget, value.fset, value.fdel):
        walk.follow(one, label)


def _names(walk: Walk, value: Any, label: str) -> None:
    walk.see_all()  # what it looks up is in it, and not in any code


def _cached(walk: Walk, value: Any, label: str) -> None:
    walk.refuse(value, label, "which remembers results: call it outside, and pass what it returns")


def _view(walk: Walk, value: Any, label: str) -> None:
    walk.refuse(value, label, "a view of a dictionary: use the dictionary itself")


_RULES: dict[type, _Rule] = {
    FunctionType: _function,
    ModuleType: module,
    ContextVar: _context,
    attrgetter: _names,
    functools.partial: _partial,
    methodcaller: _names,
    property: _property,
    types.BuiltinFunctionType: _c_function,
    types.MappingProxyType: _proxy,
    types.MethodType: _method,
    types.MethodWrapperType: _method_wrapper,
    weakref.KeyedRef: _reference,
    weakref.ref: _reference,
    _CACHED: _cached,
    **dict.fromkeys((staticmethod, classmethod), _wrapped),
    **dict.fromkeys(_VIEWS, _view),
}
