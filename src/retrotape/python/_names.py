"""The names in code: what it can look up, and on which line."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from functools import lru_cache
from inspect import getattr_static, isfunction, ismethod
from types import CodeType
from typing import Any, NamedTuple

from retrotape.python._compare import read_cell
from retrotape.python._origin import USER, of_code

# Names by which code looks up attributes whose names are computed; for the second, they may also be constants.
_ANY_NAME = frozenset(("__dict__", "__getattribute__", "asdict", "astuple", "attrgetter", "dir", "vars"))
LOOKS_UP = frozenset(("delattr", "getattr", "hasattr", "setattr"))
_OF_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME", "DELETE_GLOBAL"))
_CALLS = ("CALL", "CALL_FUNCTION")
_SIMPLE = frozenset(("LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME"))
_STORES = frozenset(("STORE_ATTR", "STORE_GLOBAL", "STORE_NAME", "STORE_DEREF", "DELETE_ATTR", "DELETE_GLOBAL"))
_LOADS = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"))


class Names(NamedTuple):
    """The names in code.

    Attributes:
      globals: Those of globals.
      attributes: Those that may be of attributes: all names, and strings by which attributes may be looked up.
      texts: These strings.
      modules: The modules that it imports when it runs.
      sees_all: Whether it may look up attributes that it does not name.
      sees_globals: Whether it may look up globals that it does not name.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    texts: frozenset[str]
    modules: tuple[str, ...]
    sees_all: bool
    sees_globals: bool


@lru_cache(4096)
def names_in(code: CodeType) -> Names:
    """Return the names in code, and in the functions that it defines.

    >>> found = names_in((lambda model: model.rate * scale).__code__)
    >>> sorted(found.globals), sorted(found.attributes)
    (['scale'], ['rate', 'scale'])
    """
    steps = [step for one in nested_in(code) for step in dis.get_instructions(one)]
    named = {name for one in nested_in(code) for name in one.co_names}
    texts = {text for one in nested_in(code) for constant in one.co_consts for text in _texts(constant)}
    lookups = [_by_constant(steps[k + 1 :]) for k, step in enumerate(steps) if step.argval in LOOKS_UP]
    own = [_of_globals(steps[k + 1 :]) for k, step in enumerate(steps) if step.argval == "globals"]
    return Names(
        frozenset([step.argval for step in steps if step.opname in _OF_GLOBALS] + [name for name in own if name]),
        frozenset(named | texts),
        frozenset(texts),
        tuple(step.argval for step in steps if step.opname == "IMPORT_NAME"),
        not _ANY_NAME.isdisjoint(named) or any(step.opname == "MATCH_CLASS" for step in steps) or not all(lookups),
        not all(own),
    )


def _by_constant(steps: list[dis.Instruction]) -> bool:
    """Return whether a call such as that of `getattr`, which these steps continue, is by a name that is a constant."""
    rest = _calling(steps)
    k = 1
    while k < len(rest) and rest[k].opname == "LOAD_ATTR":
        k += 1
    is_simple = rest[0].opname in _SIMPLE and k < len(rest) and rest[k].opname == "LOAD_CONST"
    if not is_simple or not isinstance(rest[k].argval, str):
        return False
    calls = [step.opname in _CALLS for step in rest[k + 1 : k + 3]]
    return (calls[:1] == [True] and rest[k + 1].arg == 2) or (
        calls == [False, True] and rest[k + 2].arg == 3 and rest[k + 1].opname in _SIMPLE
    )


def _of_globals(steps: list[dis.Instruction]) -> str:
    """Return the constant that the result of `globals()` is asked for by the next steps; "" if there is none."""
    rest = _calling(steps)
    if len(rest) < 3 or rest[0].opname not in _CALLS or rest[0].arg:
        return ""
    rest = rest[2:] if rest[1].opname in ("LOAD_ATTR", "LOAD_METHOD") and rest[1].argval in ("get", "pop") else rest[1:]
    is_asked = rest[0].opname == "LOAD_CONST" and isinstance(rest[0].argval, str)
    return rest[0].argval if is_asked else ""


def _calling(steps: list[dis.Instruction]) -> list[dis.Instruction]:
    return [step for step in steps[:12] if step.opname not in ("PRECALL", "PUSH_NULL")]


def _texts(constant: object) -> Iterator[str]:
    parts = constant if isinstance(constant, (tuple, frozenset)) else (constant,)
    for part in parts:
        if isinstance(part, str) and len(part) < 200:
            yield from (one for one in part.split(".") if one.isidentifier())


@lru_cache(4096)
def nested_in(code: CodeType) -> tuple[CodeType, ...]:
    """Return code and that of all functions that it defines."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return code, *(one for found in map(nested_in, inner) for one in found)


def named_by(function: Any) -> set[CodeType]:
    """Return the code of a function, and of the functions of user code that it names, directly or indirectly."""
    found: set[CodeType] = set()
    owner = function.__self__ if ismethod(function) else None
    todo = [function.__func__ if ismethod(function) else getattr_static(function, "__wrapped__", function)]
    while todo:
        one = todo.pop()
        if not isfunction(one) or of_code(one.__code__, one.__globals__) != USER or one.__code__ in found:
            continue
        found.update(nested_in(one.__code__))
        names = names_in(one.__code__).attributes
        todo += [one.__globals__[name] for name in names if name in one.__globals__]
        todo += [read_cell(cell, None) for cell in one.__closure__ or ()]
        todo += [getattr_static(type(owner), name, None) for name in names if owner is not None]
    return found


def by_line(code: CodeType) -> Iterator[tuple[int, dis.Instruction]]:
    """Yield the instructions of code, each with its line."""
    lines = {begin: line for begin, _, line in code.co_lines()}
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = lines.get(step.offset) or line
        yield line, step


def line_storing(codes: Iterable[CodeType], name: str) -> str:
    """Return the first place in code that assigns to a name, as ` at file:line`; "" if there is none."""
    return _line(codes, name, _STORES)


def line_loading(codes: Iterable[CodeType], name: str) -> str:
    """Return the first place in code that reads a name, as ` at file:line`; "" if there is none."""
    return _line(codes, name, _LOADS)


def _line(codes: Iterable[CodeType], name: str, kinds: frozenset[str]) -> str:
    for code in codes:
        for line, step in by_line(code):
            if step.opname in kinds and step.argval == name:
                return f" at {code.co_filename}:{line}"
    return ""
