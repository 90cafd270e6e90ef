"""What a backward function of user code depends on, as data that can be compared.

A function that is compiled computes what the backward function computed when it was observed. It may be used again only
where that one would compute the same: with equal code, and equal values of everything that the code refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from inspect import isbuiltin, isclass, isfunction, ismethod, ismodule
from typing import Any

import numpy as np

from retrotape.compile._observed import NotCompilableError
from retrotape.ir import FunctionProgram
from retrotape.record import Trace
from retrotape.tf.closures import is_library
from retrotape.tf.core import EagerTensor, concrete_function, identity_of, tf
from retrotape.tf.nests import is_variable, unwrap

_SCALARS = (type(None), bool, int, str, bytes, type(Ellipsis), tf.DType, np.dtype)
_DEPTH = 12
_LARGEST = 4096  # bytes of an array that is compared each time


class _Same:
    """Equal only to what stands for the same object, which it keeps alive."""

    __slots__ = ("_object",)

    def __init__(self, value: Any) -> None:
        self._object = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._object is self._object

    def __hash__(self) -> int:
        return id(self._object)


def describe(function: Callable, trace: Trace) -> Hashable:
    """Return data that are equal for backward functions that compute the same.

    Tensors of the trace are described by their vars.

    Raises:
      NotCompilableError: If it refers to something that may change unnoticed, such as an attribute of an object.
    """
    return _Description(trace).of(function, _DEPTH)


class _Description:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._seen: dict[int, int] = {}  # functions, by id, in order

    def of(self, value: Any, depth: int) -> Hashable:
        kind = type(value)
        if kind in _SCALARS:
            return kind.__name__, value
        if kind in (float, complex) or isinstance(value, np.generic):
            return kind.__name__, repr(value)
        if depth == 0:
            raise NotCompilableError("a backward function refers to functions that are nested too deeply")
        if kind is EagerTensor:
            var = self._trace.tensors.find(value)
            return ("tensor", identity_of(value)) if var is None else ("var", var)
        if kind in (tuple, list):
            return kind.__name__, tuple(self.of(item, depth - 1) for item in value)
        if kind is dict:
            return "dict", tuple((self.of(key, depth - 1), self.of(item, depth - 1)) for key, item in value.items())
        return self._object(value, depth)

    def _object(self, value: Any, depth: int) -> Hashable:
        if isfunction(value):
            return self._function(value, depth)
        if isinstance(value, partial):
            return "partial", self.of(value.func, depth - 1), self.of([value.args, value.keywords], depth - 1)
        if isinstance(value, tf.TensorShape):
            return "shape", repr(value)
        if isinstance(value, np.ndarray) and value.dtype != object and value.nbytes <= _LARGEST:
            return "array", str(value.dtype), value.shape, value.tobytes()
        if is_variable(unwrap(value)):
            return "variable", _Same(unwrap(value))
        if isinstance(value, tf.IndexedSlices):
            return "slices", self.of([value.values, value.indices, value.dense_shape], depth - 1)
        if isinstance(value, (concrete_function.ConcreteFunction, FunctionProgram)) or isbuiltin(value):
            return "object", _Same(value)
        if (ismodule(value) and is_library(value.__name__)) or (isclass(value) and is_library(value.__module__)):
            return "library", _Same(value)
        if ismethod(value) and is_library(type(value.__self__).__module__) and is_variable(unwrap(value.__self__)):
            return "method", value.__func__, self.of(value.__self__, depth - 1)
        raise NotCompilableError(
            f"a backward function refers to {_shown(value)}, whose contents may change between steps"
        )

    def _function(self, function: Any, depth: int) -> Hashable:
        if id(function) in self._seen:
            return "again", self._seen[id(function)]
        self._seen[id(function)] = len(self._seen)
        code, of = function.__code__, self.of
        parts = [function.__defaults__, function.__kwdefaults__]
        cells = tuple(_content(cell) for cell in function.__closure__ or ())
        named: tuple[Hashable, ...] = ()
        if not is_library(function.__module__ or ""):
            used = [name for name in _names(code) if name in function.__globals__]
            named = tuple((name, of(function.__globals__[name], depth - 1)) for name in used)
        return "function", code, of(parts, depth - 1), tuple(of(cell, depth - 1) for cell in cells), named


def _names(code: Any) -> list[str]:
    """Return the names of globals and attributes in a code object and in those of functions defined in it."""
    inner = [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    return [*code.co_names, *(name for one in inner for name in _names(one))]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned yet
        return Ellipsis


def _shown(value: Any) -> str:
    kind = type(value)
    named = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{named!r}" if isinstance(named, str) else f"an object of type {kind.__module__}.{kind.__qualname__}"
