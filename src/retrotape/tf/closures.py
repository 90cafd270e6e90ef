"""The values in a function's scope: its closure, its defaults and the globals that it names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from inspect import isfunction, ismethod
from types import CodeType
from typing import Any

_DEPTH = 6


def values_in(function: Any, depth: int = _DEPTH, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the values in a function's scope, and in those of functions in its closure and of helpers that it names.

    >>> scale = 3
    >>> 3 in list(values_in(lambda x: x * scale))
    True
    """
    if ismethod(function):
        yield function.__self__
        function = function.__func__
    seen = set() if seen is None else seen
    if not isfunction(function) or depth == 0 or id(function) in seen:
        return
    seen.add(id(function))
    inside = [cell.cell_contents for cell in function.__closure__ or () if is_full(cell)]
    named = [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
    yield from [*inside, *(function.__defaults__ or ()), *named]
    for value in [*inside, *(value for value in named if isfunction(value) and is_users(value))]:
        yield from values_in(value, depth - 1, seen)


_LIBRARIES = frozenset(("tensorflow", "keras", "numpy", "retrotape", "builtins"))


def is_users(value: Any) -> bool:
    """Return whether a function or class is user code, and so may reference variables that no library tracks."""
    return (value.__module__ or "").partition(".")[0] not in _LIBRARIES


@lru_cache(4096)
def is_library_code(code: CodeType) -> bool:
    """Return whether code is TensorFlow's, Keras' or this library's, by its file: names can be copied to a wrapper."""
    modules = [sys.modules.get(name) for name in ("tensorflow", "keras", "retrotape")]
    files = [module.__file__ for module in modules if module is not None and module.__file__]
    return code.co_filename.startswith(tuple(os.path.join(os.path.dirname(file), "") for file in files))


def is_full(cell: Any) -> bool:
    """Return whether a variable of a closure has a value."""
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
