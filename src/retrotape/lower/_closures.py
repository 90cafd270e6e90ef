"""What a backward function of user code depends on, as data that can be compared.

A compiled function does what the backward function did when it was observed, and its Python code does not run again. So
it is used only if that code has no effect but its result, and depends on nothing that can change unnoticed: functions
that may are refused, and the values that the others refer to are compared each time.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Callable, Hashable, Iterable
from functools import cache, lru_cache, partial
from inspect import isclass, isfunction, ismodule
from types import CodeType
from typing import Any
from weakref import ref

import numpy as np

from retrotape.ir import FunctionProgram
from retrotape.lower._observed import NotCompilableError, value_bytes
from retrotape.record import Trace
from retrotape.tf.closures import is_library_code
from retrotape.tf.core import EagerTensor, attributes_of, concrete_function, identity_of, tf
from retrotape.tf.nests import is_variable, unwrap
from retrotape.tf.replicas import handle_of

_SCALARS = (type(None), bool, int, str, bytes, type(Ellipsis), tf.DType, np.dtype)
_DEPTH = 12
_NUMBERS = ("numpy", "ml_dtypes")  # the modules of their types
_LARGEST = 4096  # bytes of an array that is compared each time
_MODULES = ("tensorflow",)  # Keras has settings, such as `epsilon`, that its functions read
# By `id`, as whatever is compared with objects of users: they may have no hash.
_PURE = (abs, all, any, bool, enumerate, float, int, isinstance, len, list, max, min, range, reversed, slice, sum)
_BUILTINS = frozenset(map(id, (*_PURE, tuple, zip)))
# Parts of TensorFlow and Keras that have state in Python.
_STATEFUL = frozenset(("backend", "config", "dlpack", "keras", "summary"))
# Public functions that are no ops.
_NOT_OPS = frozenset(
    """custom_gradient device executing_eagerly function get_logger grad_pass_through init_scope inside_function
    numpy_function print py_function recompute_grad""".split()  # noqa: SIM905
)
# What changes something outside the function.
_EFFECTS = frozenset(
    ("DELETE_ATTR", "DELETE_GLOBAL", "DELETE_SUBSCR", "IMPORT_NAME", "STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR")
)


class _Same:
    """Equal only to what stands for the same object, as long as that exists; it does not keep it alive."""

    __slots__ = ("_hash", "_object")

    def __init__(self, value: Any) -> None:
        try:
            self._object: Callable[[], Any] = ref(value)
        except TypeError:  # a part of Python, or a program, which is data
            self._object = lambda: value
        self._hash = id(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._object() is not None and other._object() is self._object()

    def __hash__(self) -> int:
        return self._hash


def describe(function: Callable, trace: Trace) -> Hashable:
    """Return data that are equal for backward functions that compute the same.

    Tensors of the trace are described by their vars.

    Raises:
      NotCompilableError: If it may have an effect, or depend on something that changes unnoticed.
    """
    try:
        return _Description(trace).of(function, _DEPTH)
    except NotCompilableError:
        raise
    except Exception as error:  # of an object of the user's, which may raise whatever it likes
        kind = type(error).__name__
        raise NotCompilableError(f"a backward function refers to what raises {kind} when it is looked at") from error


class _Description:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._seen: dict[int, int] = {}  # functions, by id, in order

    def of(self, value: Any, depth: int, library: bool = False) -> Hashable:
        """Describe a value that a function refers to; `library` says that the function is TensorFlow's or Keras'."""
        kind = type(value)
        if kind in _SCALARS:
            return kind.__name__, value
        if kind in (float, complex) or (isinstance(value, np.generic) and kind.__module__ in _NUMBERS):
            return kind.__name__, repr(value)
        if depth == 0:
            raise NotCompilableError("a backward function refers to functions that are nested too deeply")
        if (kind is EagerTensor or is_variable(unwrap(value))) and any(
            not key.startswith("_") for key in attributes_of(value)
        ):
            raise NotCompilableError("a backward function refers to a tensor or variable with attributes of user code")
        if kind is EagerTensor:
            var = self._trace.tensors.find(value)
            return _tensor(value) if var is None else ("var", var)
        if kind is tuple or (library and kind is list):
            return kind.__name__, tuple(self.of(item, depth - 1, library) for item in value)
        if library and kind is dict:
            items = [part for pair in value.items() for part in pair]
            return "dict", tuple(self.of(item, depth - 1, library) for item in items)
        return self._object(value, depth, library)

    def _object(self, value: Any, depth: int, library: bool) -> Hashable:
        if isfunction(value):
            if value in _public()[1]:
                return "public", _Same(value)
            if not library and is_library_code(value.__code__) and depth < _DEPTH:
                raise NotCompilableError(f"a backward function refers to {_shown(value)}, which may have state")
            return self._function(value, depth)
        if type(value) is partial and not vars(value):
            return "partial", self.of((value.func, value.args, tuple(value.keywords.items())), depth - 1)
        if isinstance(value, tf.TensorShape):
            return "shape", repr(value)
        if type(value) is np.ndarray and not value.dtype.hasobject and value.nbytes <= _LARGEST:
            return "array", str(value.dtype), value.shape, value.tobytes()
        if is_variable(unwrap(value)):
            identity = identity_of(handle_of(unwrap(value)))
            (slot,) = self._trace.slots_of([identity])
            return ("variable", identity) if slot is None else ("slot", slot)
        if isinstance(value, tf.IndexedSlices):
            return "slices", self.of((value.values, value.indices, value.dense_shape), depth - 1)
        if isinstance(value, (concrete_function.ConcreteFunction, FunctionProgram)) or _is_harmless(value):
            return "object", _Same(value)
        raise NotCompilableError(f"a backward function refers to {_shown(value)}, which may change between steps")

    def _function(self, function: Any, depth: int) -> Hashable:
        if id(function) in self._seen:
            return "again", self._seen[id(function)]
        self._seen[id(function)] = len(self._seen)
        code, library = function.__code__, is_library_code(function.__code__)
        named: list[Any] = []
        attributes: tuple[str, ...] = ()
        if not library:
            loaded, attributes = _names_in(code)
            for name in loaded:
                if name in function.__globals__ or hasattr(builtins, name):
                    named += [name, function.__globals__.get(name, getattr(builtins, name, None))]
            named += [part for pair in vars(function).items() for part in pair if pair[0] != "__wrapped__"]
        held = (
            function.__defaults__,
            *(function.__kwdefaults__ or {}).items(),
            *map(_content, function.__closure__ or ()),
        )
        parts = [self.of(part, depth - 1, library) for part in held]
        parts += [self.of(part, depth - 1) for part in named]
        modules = [value for value in (*named, *held) if ismodule(value)] if attributes else []
        parts += [self._attributes(module, attributes, depth - 1) for module in modules]
        return "function", code, tuple(parts)

    def _attributes(self, module: Any, names: Iterable[str], depth: int) -> Hashable:
        """Describe the attributes of a module that code may use: user code may have replaced them."""
        found: list[Hashable] = []
        for name in names:
            value = vars(module).get(name)
            if ismodule(value) and depth:
                found.append((name, self._attributes(value, names, depth - 1)))
            elif value is not None:
                is_plain = isfunction(value) and is_library_code(value.__code__)
                found.append((name, _Same(value) if is_plain else self.of(value, depth)))
        return tuple(found)


def _tensor(value: Any) -> Hashable:
    """Describe a tensor that is not on the trace: by its value as well, for it may share the memory of an array."""
    size = value.dtype.size * value.shape.num_elements() if value.dtype.is_numpy_compatible else 0
    if size > _LARGEST:
        raise NotCompilableError("it uses a large tensor that is not on the tape")
    return "tensor", identity_of(value), value_bytes(value) if size else None


def _is_harmless(value: Any) -> bool:
    """Return whether a value is a part of Python, TensorFlow or Keras that has no state."""
    if ismodule(value) or isclass(value):
        name = value.__name__ if ismodule(value) else value.__module__
        genuine = ismodule(value) or getattr(sys.modules.get(name), value.__name__, None) is value
        return (name.partition(".")[0] in _MODULES and genuine) or id(value) in _BUILTINS
    return id(value) in _BUILTINS


@lru_cache(1024)
def _names_in(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of globals and of attributes that code loads, or raise if it may have an effect."""
    loaded: list[str] = []
    attributes: list[str] = []
    for step in dis.get_instructions(code):
        own = step.opname == "STORE_DEREF" and step.argval in code.co_freevars
        if own or step.opname in _EFFECTS:
            raise NotCompilableError(f"the backward function {code.co_name!r} changes something besides its result")
        if step.argval in _STATEFUL and step.opname.startswith("LOAD"):
            raise NotCompilableError(f"the backward function {code.co_name!r} uses {step.argval!r}, which has state")
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if step.argval not in _public()[0]:
                raise NotCompilableError(f"the backward function {code.co_name!r} uses the attribute {step.argval!r}")
            attributes.append(step.argval)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.append(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _names_in(constant)
            loaded += inner[0]
            attributes += inner[1]
    return tuple(dict.fromkeys(loaded)), tuple(dict.fromkeys(attributes))


@cache
def _public() -> tuple[frozenset[str], frozenset[Any]]:
    """Return the names that code may use as attributes, and TensorFlow's public functions, which have no state."""
    spaces = (tf, tf.math, tf.nn, tf.linalg, tf.signal, tf.sparse, tf.strings, tf.image, tf.debugging, tf.raw_ops)
    names = [name for space in spaces for name in dir(space) if not name.startswith("_")]
    of_tensors = ("as_list", "dense_shape", "dtype", "indices", "ndims", "numpy", "read_value", "values")
    functions = [getattr(space, name) for space in spaces for name in dir(space) if not name.startswith("_")]
    own = [one for one in functions if isfunction(one) and is_library_code(one.__code__)]  # not what users put there
    ops = [function for function in own if function.__name__ not in _NOT_OPS]
    return frozenset((*names, *of_tensors)) - _NOT_OPS, frozenset(ops)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned yet
        return Ellipsis


def _shown(value: Any) -> str:
    kind = type(value)
    named = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{named!r}" if isinstance(named, str) else f"an object of type {kind.__module__}.{kind.__qualname__}"
