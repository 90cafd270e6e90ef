"""Functions that travel by name: a question, or a function that it refers to, that is in a module workers import.

Only its name is pickled. A worker imports the module anew, so what the driver changed in it while it ran is not there.
Therefore the driver sends a fingerprint of each, and workers refuse to go on with another.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib import import_module
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from retrotape.distribute._fingerprint import fingerprint
from retrotape.errors import FarmError

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Reference(NamedTuple):
    """A function in a module, and its fingerprint."""

    module: str
    name: str
    fingerprint: str


def references(question: Callable[[Any], Any]) -> tuple[Reference, ...]:
    """Return the functions that a question consists of and that travel by name, except those of libraries."""
    found = []
    for function in _reached(question, set()):
        known = fingerprint(function)
        if known != fingerprint(function):  # it refers to what cannot be described, so there is nothing to compare
            continue
        found.append(Reference(function.__module__, function.__qualname__, known))
    return tuple(found)


def check(expected: tuple[Reference, ...]) -> None:
    """Raise if one of the functions is another one in this process.

    Raises:
      FarmError: If it is, or refers to something else.
    """
    for module, name, known in expected:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if fingerprint(found) != known:
            raise FarmError(
                f"The function {module}.{name}, or something that it refers to, is different in the worker process: "
                "what was changed in a module while the program ran is not there",
                "Define the function in the main script, or pass values as arguments: "
                "`functools.partial(question, scale)`",
            )


def _reached(value: Any, seen: set[int]) -> Iterator[FunctionType]:
    """Yield functions that travel by name, among what a function is and refers to."""
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _reached(part, seen)
    elif isinstance(value, MethodType):
        yield from _reached(value.__func__, seen)
    elif isinstance(value, FunctionType) and id(value) not in seen:
        seen.add(id(value))
        if _is_importable(value):
            if _is_of_library(sys.modules[value.__module__]):
                return
            yield value
        for used in _used(value):
            yield from _reached(used, seen)
    elif callable(value) and not isinstance(value, (type, FunctionType)):
        call = type(value).__call__
        if isinstance(call, FunctionType):  # not one written in C
            yield from _reached(call, seen)


def _used(function: FunctionType) -> Iterator[Any]:
    """Yield what a function refers to: the contents of its closure, globals, and their attributes if modules."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    names = _names_in(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield value
        if isinstance(value, ModuleType) and not _is_of_library(value):
            yield from (getattr(value, inner) for inner in sorted(names) if hasattr(value, inner))


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def _is_importable(function: FunctionType) -> bool:
    """Return whether pickle finds a function by its name."""
    found: Any = sys.modules.get(function.__module__)
    if found is None or function.__module__ in ("__main__", "__mp_main__"):
        return False
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _is_of_library(module: ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    return path is None or path.startswith(_LIBRARIES) or module.__name__.partition(".")[0] == "retrotape"
