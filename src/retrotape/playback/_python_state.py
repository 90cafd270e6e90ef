"""The Python state that code depends on: globals, closures, attributes, and what they contain."""

from __future__ import annotations

import builtins
import functools
import os
import random
import re
import sys
import threading
from collections import deque
from collections.abc import Collection, ItemsView, KeysView, ValuesView
from inspect import getattr_static, isclass, isfunction, ismethod, ismodule
from types import BuiltinMethodType, CodeType
from typing import Any

import numpy as np

from retrotape.lower import NotCompilableError
from retrotape.playback._code import LIBRARIES, functions_of, imports_in, is_user_code, is_users, names_in, nested_in
from retrotape.playback._keras_state import OF_VARIABLES, UNIMPORTANT, is_keras, is_of_optimizers, is_settled, leads_on
from retrotape.playback._values import (
    ABSENT,
    CACHED,
    CONTAINERS,
    IMMUTABLE,
    Cell,
    Content,
    Item,
    Slots,
    holds_variable,
    is_immutable,
    parts_of,
    snapshot,
)
from retrotape.tf.closures import is_full
from retrotape.tf.core import EagerTensor

_MANY = 50_000  # objects
# Modules of the standard library with classes whose objects have attributes of user code.
_NAMESPACES = frozenset(("_thread", "argparse", "collections", "configparser", "dataclasses", "threading", "types"))


class Capture:
    """Walks through everything that is reachable from functions and values, and notes what it finds.

    Args:
      codes: The code that has run; None if that is not known yet. Then everything counts that might be used.
    """

    def __init__(self, codes: Collection[CodeType] | None = None) -> None:
        self._codes = codes
        self._names = None if codes is None else frozenset().union(*(names_in(code).loaded for code in codes))
        self._texts = frozenset().union(*(names_in(code).texts for code in codes or ()))
        if self._names is not None and "AttributeError" in self._names:  # any attribute may be expected to be missing
            self._texts = self._names
        if codes is not None and any(names_in(code).every for code in codes):
            self._names = None
        self.items: dict[tuple[int, Any], Item] = {}
        self.contents: dict[int, Content] = {}
        self.functions: set[CodeType] = set()
        self.generators: list[Any] = []  # of random numbers
        self.hidden: list[str] = []  # what has state that cannot be compared, and what to do about it
        self._seen: dict[int, Any] = {}
        self._spaces: dict[int, Any] = {}
        self._slots: dict[int, Slots] = {}
        self.tensors: dict[int, Any] = {}  # by `id`
        self.sizes: dict[int, Content] = {}  # by `id`: how many attributes an object of Keras, or a variable, has
        self.of_keras: list[Any] = []  # objects whose class is Keras' own
        # Namespaces of modules of libraries, which load some names when they are first used.
        self.lazy: set[int] = set()
        self._todo: deque[tuple[Any, str]] = deque()
        self._followed: set[CodeType] | None = None

    def add(self, value: Any, label: str) -> None:
        """Note what is reachable from a value."""
        self._todo.append((value, label))
        while self._todo:
            self._visit(*self._todo.popleft())

    def objects(self) -> list[Any]:
        """Return the objects of user code."""
        return [one for one in self._seen.values() if not isclass(one) and is_users(type(one))]

    def has_followed(self, code: CodeType) -> bool:
        """Return whether everything that some code refers to was noted, where it is in user code."""
        if self._followed is None:
            self._followed = {one for known in self.functions for one in nested_in(known)}
        return code in self._followed

    def knows(self, where: int) -> bool:
        """Return whether a namespace was seen, by the first part of the key of an item."""
        return where in self._spaces

    def add_globals(self, space: dict[str, Any], names: Collection[str]) -> None:
        """Note globals."""
        for name in names:
            if name in space or hasattr(builtins, name):
                self._item(space, name, f"the global {name!r}")
                value = space.get(name)
                if ismodule(value):
                    self._module(value, names, name)
            elif "NameError" in names:  # it may be expected to be missing
                self._item(space, name, f"the global {name!r}", follow=False)

    def add_setting(self, space: Any, name: str, owner: str = "Keras") -> None:
        """Note a setting of a library."""
        label = f"the setting {name.strip('_').lower()!r} of {owner}"
        self._item(space, name, label, of_library=True, follow=False)

    def add_code(self, code: CodeType, space: dict[str, Any]) -> None:
        """Note the globals that code names."""
        self.functions.add(code)
        self._followed = None
        self.add_globals(space, names_in(code).loaded)
        while self._todo:
            self._visit(*self._todo.popleft())

    def _is_named(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _item(
        self, space: Any, key: Any, label: str, of_library: bool = False, follow: bool = True, owner: Any = None
    ) -> None:
        """Note what a name stands for; `owner` is what the namespace belongs to, if that is made anew each time."""
        where = id(space.cell if isinstance(space, Cell) else space if owner is None else owner)
        if (where, key) in self.items:
            return
        self._spaces[where] = space if owner is None else owner
        try:
            value = space[key]
        except KeyError:
            value = ABSENT
        self.items[where, key] = Item(space, key, value, label, of_library)
        if type(value) is EagerTensor:
            self.tensors[id(value)] = value
        if follow:
            self._todo.append((value, label))

    def _visit(self, value: Any, label: str) -> None:
        if isinstance(value, IMMUTABLE) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if len(self._seen) > _MANY:
            raise NotCompilableError(f"it refers to more than {_MANY} objects, which may change")
        if type(value) is EagerTensor:
            self.tensors[id(value)] = value
            return
        if ismodule(value):
            if is_users(value) or self._names is not None:
                self._module(value, list(vars(value)) if self._names is None else self._names, label)
            return
        if holds_variable(value):
            self._variable(value, label)
            return
        if isfunction(value):
            self._function(value, label)
        elif ismethod(value):
            self._todo.extend([(value.__self__, "self"), (value.__func__, label)])
        elif isinstance(value, functools.partial):
            self._todo.extend([(value.func, label), (value.args, label), (value.keywords, label)])
        elif isclass(value):
            self._class(value, label)
        elif isinstance(value, CONTAINERS):
            self._container(value, label)
        elif isinstance(value, (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)):
            self.generators.append(value)
        elif isinstance(value, BuiltinMethodType) and not ismodule(value.__self__):
            self._todo.append((value.__self__, label))
        elif isinstance(value, (KeysView, ValuesView, ItemsView)):
            self.hidden.append(f"{label}, a view of a dictionary: use the dictionary itself")
        elif isinstance(value, CACHED):
            self.hidden.append(f"{label}, which remembers results: call it outside, and pass what it returns")
        elif hasattr(type(value), "__next__"):
            self.hidden.append(f"{label}, an iterator: pass what it yields instead")
        else:
            self._object(value, label)

    def _variable(self, value: Any, label: str) -> None:
        """Note the attributes that user code has given to a variable."""
        space = vars(value)
        self._spaces[id(space)] = space
        self.sizes[id(space)] = Content(space, len(space), label, True)
        names = [name for name in space if not name.startswith("_") and self._is_named(name)]
        for name in {*names, *self._texts}:
            self._item(space, name, f"{label}.{name}", follow=False)
        for name in OF_VARIABLES & space.keys():  # a constraint may have attributes that change
            self._item(space, name, f"{label}.{name.strip('_')}", follow=leads_on(space[name]))

    def _function(self, function: Any, label: str) -> None:
        code = function.__code__
        if not is_user_code(code):
            wrapped = [cell.cell_contents for cell in function.__closure__ or () if is_full(cell)]
            self._todo.extend((one, label) for one in wrapped if isfunction(one) or ismethod(one))
            if "registry" in vars(function):  # of `functools.singledispatch`
                self._todo.append((vars(function)["registry"], label))
            return
        self.functions.add(code)
        for name in vars(function):
            self._item(vars(function), name, f"{function.__name__}.{name}")
        if self._codes is not None and code not in self._codes:
            return
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._item(Cell(cell), "cell", f"{name!r} in the closure of {function.__name__!r}")
        self.add_globals(function.__globals__, names_in(code).loaded)
        for name in imports_in(code):
            module = sys.modules.get(name)
            if module is not None and is_users(module):
                self._module(module, names_in(code).loaded, name)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._slot(function, name, f"{function.__name__}.{name}")

    def _slot(self, value: Any, name: str, label: str) -> None:
        self._item(self._slots.setdefault(id(value), Slots(value)), name, label, owner=value)

    def _module(self, module: Any, names: Collection[str], label: str, depth: int = 4) -> None:
        space = vars(module)
        if not is_users(module):
            self.lazy.add(id(space))
        else:
            for name in self._texts - space.keys():  # by which it may be looked up
                self._item(space, name, f"{label}.{name}", follow=False)
        for name in names:
            if name in space and depth:
                value = space[name]
                is_followed = is_users(module) or (isfunction(value) and is_user_code(value.__code__))
                self._item(space, name, f"{label}.{name}", follow=is_followed or value is os.environ)
                if value is os.getenv:
                    self._todo.append((os.environ, "os.environ"))
                if ismodule(value):
                    self._module(value, names, f"{label}.{name}", depth - 1)

    def _class(self, value: type, label: str) -> None:
        kinds = [kind for kind in value.__mro__ if is_users(kind)]
        for kind in kinds:
            if id(kind) in self._seen and kind is not value:
                continue
            self._seen[id(kind)] = kind
            # A new member may replace an inherited one, or one that was not there.
            self.sizes[id(kind)] = Content(vars(kind), len(vars(kind)), f"the class {kind.__name__}", True)
            if is_users(type(kind)):
                self._todo.append((type(kind), type(kind).__name__))
            for name in [name for name, member in list(vars(kind).items()) if self._is_used(name, member)]:
                member = vars(kind)[name]
                self._item(vars(kind), name, f"{kind.__name__}.{name}", follow=False, owner=kind)
                self._todo.extend((one, f"{kind.__name__}.{name}") for one in functions_of(member))
                for derived in kinds[: kinds.index(kind)]:  # which may get one of its own
                    self._item(vars(derived), name, f"{derived.__name__}.{name}", follow=False, owner=derived)

    def _is_used(self, name: str, member: Any) -> bool:
        """Return whether a member of a class is named by user code, or was called by Python or Keras."""
        if self._is_named(name) or (name.startswith("__") and isfunction(member)):
            return True
        return any(isfunction(one) and one.__code__ in (self._codes or ()) for one in functions_of(member))

    def _container(self, value: Any, label: str) -> None:
        if not isinstance(value, (tuple, frozenset)):
            self.contents[id(value)] = Content(value, snapshot(value), label)
        if not isinstance(value, np.ndarray) or value.dtype.hasobject:
            self._todo.extend((one, f"an element of {label}") for one in parts_of(value))
        if is_users(type(value)):
            self._object(value, label)

    def _object(self, value: Any, label: str) -> None:
        kind = type(value)
        method = kind.__module__.startswith("retrotape.aggregate")  # whose parameters are attributes
        mine, keras = is_users(kind) or method or kind.__module__ in _NAMESPACES, is_keras(kind)
        own = kind.__module__.startswith("tensorflow")
        inner = getattr(value, "python_function", None) if own else getattr_static(value, "__wrapped__", None)
        if inner is not None:
            self._todo.append((inner, label))
        if hasattr(kind, "why_not_compiled"):  # another compiled step
            for name in [name for name in vars(value) if not name.startswith("_")]:
                self._item(vars(value), name, f"{label}.{name}")
        if not mine and not keras:
            return
        whole = method or (any(base.__module__.partition(".")[0] in LIBRARIES for base in kind.__mro__) and not keras)
        if mine and is_users(kind):
            self._todo.append((kind, kind.__name__))
        space = _attributes(value)
        self._spaces[id(space)] = space
        if mine:
            self._not_there(space, kind, label)
        if keras:  # a new one may replace a method
            self.sizes[id(space)] = Content(space, len(space), label, True)
            self.of_keras.append(value)
        for name in list(space):
            if mine and (whole or self._is_named(name)):
                self._item(space, name, f"{label}.{name}")
            elif keras and name not in UNIMPORTANT:
                self._of_library(space, name, f"{label}.{name}", kind)
        slots = [vars(base).get("__slots__", ()) for base in kind.__mro__] if mine else []
        for name in (name for own in slots for name in ([own] if isinstance(own, str) else own)):
            if name != "__dict__" and name != "__weakref__" and self._is_named(name):
                self._slot(value, name, f"{label}.{name}")

    def _not_there(self, space: Any, kind: type, label: str) -> None:
        """Note the attributes that the class has, or user code asks for, and the object has not."""
        if self._names is None:  # attributes are looked up by names that are computed
            self.contents[id(space)] = Content(space, snapshot(space), label)
        of_class = {name for one in kind.__mro__ if is_users(one) for name in vars(one)}
        if is_keras(kind):  # which calls methods that no user code names
            of_class = {name for name in of_class if not name.startswith("__")}
        for name in of_class if is_keras(kind) else self._names or ():
            if name not in space and (name in of_class or name in self._texts):
                self._item(space, name, f"{label}.{name}", follow=False)

    def _of_library(self, space: Any, name: str, label: str, kind: type) -> None:
        """Note an attribute that Keras uses: a setting, a function, a variable, a layer."""
        value = space[name]
        if isinstance(value, np.ndarray) or type(value) is EagerTensor:
            self._item(space, name, label, of_library=True)
        elif isinstance(value, CONTAINERS) and not is_immutable(value):
            if is_settled(value) or is_of_optimizers(kind):
                self._item(space, name, label, of_library=True, follow=False)
                self._contents_of_library(value, label)
            self._parts_of_library(value, label)
        elif isinstance(value, (functools.partial, re.Pattern)):
            self._item(space, name, label, of_library=True)
        elif is_immutable(value) or holds_variable(value) or leads_on(value):
            self._item(space, name, label, of_library=True, follow=leads_on(value))

    def _contents_of_library(self, value: Any, label: str) -> None:
        """Note what a container of Keras contains, and what containers in it contain."""
        if id(value) not in self.contents:
            self.contents[id(value)] = Content(value, snapshot(value), label, True)
            for part in parts_of(value):
                if isinstance(part, CONTAINERS) and not is_immutable(part):
                    self._contents_of_library(part, label)

    def _parts_of_library(self, value: Any, label: str, depth: int = 3) -> None:
        """Visit the layers, functions and objects of user code in a container that Keras keeps for itself."""
        for part in list(value.values()) if isinstance(value, dict) else list(value):
            if isinstance(part, CONTAINERS) and depth:
                self._parts_of_library(part, label, depth - 1)
            elif leads_on(part):
                self._todo.append((part, getattr(part, "name", None) or label))


def _attributes(value: Any) -> dict[str, Any]:
    """Return the dictionary of an object, without running user code."""
    try:
        if type(value) is threading.local:  # each thread has another one
            return value.__dict__
        return {} or object.__getattribute__(value, "__dict__")  # see `tf.core.attributes_of`
    except AttributeError:
        return {}
