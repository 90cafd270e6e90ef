"""Which function this is: a digest of its code and of everything that it refers to.

Results in a folder are reused if the digest is the same, so whatever is left out here could become a wrong result. What
cannot be described therefore counts as something new each time: its results are never reused.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from retrotape.distribute._job import digest
from retrotape.distribute._origin import imported, is_library, is_library_file, source, version_of
from retrotape.tf.core import tf

_ATOMS = (type(None), bool, int, float, complex, str, type(Ellipsis), type(NotImplemented))
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
# What Python itself puts into a class; the source has the rest of what matters.
_OF_PYTHON = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__abstractmethods__", "_abc_impl", "__annotations_cache__")
)


def fingerprint(question: Callable[[Any], Any]) -> str:
    """Return a digest of what a function does: its code, and the values, functions, classes and files it refers to.

    It is the same in every process, and another one each time if something cannot be described.
    """
    return digest(_Description().of(question))


class _Description:
    """Describes values by data that differ where the values do."""

    def __init__(self) -> None:
        self._seen: dict[Any, tuple[int, Any]] = {}  # by identity, with the value, so that no other one gets its id

    def of(self, value: Any) -> Any:
        """Return data that describe a value."""
        try:
            return self._any(value)
        except Exception:  # whatever `__reduce__` and properties of the user's objects raise; too deep a nest
            return "unknown", uuid.uuid4().hex

    def _any(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return kind.__name__, repr(value)
        if kind in (bytes, bytearray):
            return kind.__name__, hashlib.sha256(value).hexdigest()
        if kind is tuple:  # no tuple is in itself, and whether two equal ones are one is for Python to choose
            return "tuple", [self.of(item) for item in value]
        if kind in (set, frozenset):
            return kind.__name__, sorted(digest(_Description().of(item)) for item in value)
        if kind is MethodType:
            return "method", self.of(value.__func__), self.of(value.__self__)
        if isinstance(value, ModuleType):
            return self._module(value, None)
        return self._again(id(value), value) or self._new(value, kind)

    def _again(self, key: Any, value: Any) -> tuple[str, int] | None:
        """Return which value it was that this is, if it was described before, or is being described."""
        if key in self._seen:
            return "again", self._seen[key][0]
        self._seen[key] = len(self._seen), value
        return None

    def _new(self, value: Any, kind: type) -> Any:
        if kind is list:
            return "list", [self.of(item) for item in value]
        if kind is dict:
            return "dict", [(self.of(key), self.of(item)) for key, item in value.items()]
        if isinstance(value, type):
            return self._class(value)
        if kind is FunctionType:
            return self._function(value)
        if kind is CodeType:
            return "code", list(_parts(value))
        if isinstance(value, BuiltinFunctionType):
            owner = value.__self__
            of = None if owner is None or isinstance(owner, ModuleType) else self.of(owner)
            return "builtin", value.__module__, value.__qualname__, of
        if kind in (staticmethod, classmethod):
            return kind.__name__, self.of(value.__func__)
        if kind is property:
            return "property", [self.of(one) for one in (value.fget, value.fset, value.fdel)]
        if isinstance(value, (GetSetDescriptorType, MemberDescriptorType)):
            return "slot", value.__objclass__.__qualname__, value.__name__
        if kind is partial:
            return "partial", self.of(value.func), self.of(value.args), self.of(value.keywords), self.of(vars(value))
        if isinstance(value, tf.types.experimental.GenericFunction) and hasattr(value, "python_function"):
            return self._tf_function(value)
        return self._object(value, kind)

    def _tf_function(self, value: Any) -> Any:
        """Describe a function of TensorFlow by its Python function and its options: what it has traced cannot be."""
        options = sorted((name, one) for name, one in vars(value).items() if type(one) in (bool, str))
        return "tf.function", self.of(value.python_function), repr(value.input_signature), options

    def _object(self, value: Any, kind: type) -> Any:
        reducer = copyreg.dispatch_table.get(kind)
        reduced = reducer(value) if reducer else value.__reduce_ex__(4)
        if isinstance(reduced, str):  # the name of a global
            return "global", self.of(kind), reduced
        made, arguments, *rest = reduced
        state, items, pairs = (*rest, None, None, None)[:3]
        parts = (made, arguments, state, list(items or ()), list(pairs or ()))
        return "object", self.of(kind), [self.of(part) for part in parts]

    def _module(self, module: ModuleType, names: frozenset[str] | None) -> Any:
        """Describe a module: its file, and the attributes of these names, or all of them."""
        if is_library(module.__name__):
            return "library", module.__name__, version_of(module.__name__)
        if again := self._again((id(module), names), module):
            return again
        own = vars(module)
        used = sorted(name for name in (own if names is None else names & own.keys()) if not name.startswith("__"))
        return "module", module.__name__, source(getattr(module, "__file__", None)), self._named(own, used, names)

    def _class(self, value: type) -> Any:
        if is_library(value.__module__):
            return "library", value.__module__, value.__qualname__, version_of(value.__module__)
        own = {name: item for name, item in vars(value).items() if name not in _OF_PYTHON}
        bases = [self.of(base) for base in (type(value), *value.__bases__)]
        file = source(getattr(imported(value.__module__), "__file__", None))
        return "class", value.__module__, value.__qualname__, file, bases, self._named(own, sorted(own))

    def _function(self, value: FunctionType) -> Any:
        name = value.__module__, value.__qualname__
        if is_library(value.__module__) and _found(*name) is value:
            return "library", *name, version_of(value.__module__)
        code = value.__code__
        cells = [_content(cell) for cell in value.__closure__ or ()]
        names = frozenset(_names(code))
        held = [self._used(item, names) for item in cells]
        parts = (value.__defaults__, value.__kwdefaults__, vars(value))  # the last has `__wrapped__`
        held += [self.of(part) for part in parts]
        if is_library_file(code.co_filename):  # made there, for example by a decorator, of what it holds
            return "made", *name, version_of(value.__module__), list(_parts(code)), held
        used = [one for one in sorted(_named_by(code, _GLOBALS)) if one in value.__globals__]
        held.append(self._named(value.__globals__, used, names))
        package = value.__globals__.get("__package__")
        inside = [self._imported(one, package, names) for one in sorted(_named_by(code, {"IMPORT_NAME"}))]
        return "function", list(_parts(code)), held, inside, source(code.co_filename)

    def _imported(self, name: str, package: str | None, names: frozenset[str]) -> Any:
        """Describe what a function imports when it runs."""
        if name and is_library(name):
            return "library", name, version_of(name)
        found = [imported(one) for one in (name, f"{package}.{name}".rstrip(".") if package else "")]
        modules = [module for module in found if module is not None]
        return [self._module(module, names) for module in modules] or ("unknown", uuid.uuid4().hex)

    def _named(self, own: Mapping[str, Any], used: list[str], names: frozenset[str] | None = None) -> list[Any]:
        return [(name, self._used(own[name], names)) for name in used]

    def _used(self, value: Any, names: frozenset[str] | None) -> Any:
        return self._module(value, names) if isinstance(value, ModuleType) else self.of(value)


def _found(module: str, path: str) -> Any:
    """Return what has a name in a module, or None."""
    value: Any = imported(module)
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned yet
        return NotImplemented


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of the functions and classes defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(code: CodeType) -> Iterator[str]:
    for part in _codes(code):
        yield from part.co_names


def _named_by(code: CodeType, operations: frozenset[str] | set[str]) -> set[str]:
    steps = (step for part in _codes(code) for step in dis.get_instructions(part))
    return {step.argval for step in steps if step.opname in operations}


def _parts(code: CodeType) -> Iterator[Any]:
    for part in _codes(code):
        constants = [constant for constant in part.co_consts if not isinstance(constant, CodeType)]
        shown = [repr(sorted(one, key=repr) if isinstance(one, frozenset) else one) for one in constants]
        yield part.co_code, part.co_names, part.co_varnames, part.co_freevars, shown
