"""Which code is the user's: code of these libraries depends on Python state only as far as it is told."""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache, lru_cache, partialmethod
from inspect import getattr_static, isfunction, ismethod
from types import CodeType
from typing import Any, NamedTuple

from retrotape.tf.closures import is_full

# Packages whose code is not analysed: what they do with tensors are ops, which are recorded.
LIBRARIES = frozenset(
    (
        "_pytest",
        "absl",
        "astunparse",
        "google",
        "h5py",
        "hypothesis",
        "keras",
        "ml_dtypes",
        "namex",
        "numpy",
        "opt_einsum",
        "optree",
        "pluggy",
        "retrotape",
        "rich",
        "scipy",
        "tensorflow",
        "tqdm",
        "tree",
        "typing_extensions",
        "wrapt",
    )
)
_EVERY_NAME = frozenset(
    ("__dict__", "__getattribute__", "asdict", "astuple", "attrgetter", "delattr", "getattr", "vars")
)


@cache
def _standard_library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(os.path.join(paths[name], "") for name in ("stdlib", "platstdlib"))


@lru_cache(8192)
def is_user_code(code: CodeType) -> bool:
    """Return whether code is neither Python's nor that of a library that is known to keep no state between calls."""
    file = code.co_filename
    if file.startswith("<frozen") or "__autograph_generated_file" in file:
        return False
    for module in LIBRARIES & sys.modules.keys():
        home = getattr(sys.modules[module], "__file__", None)
        if (
            home is not None
            and os.path.basename(home) == "__init__.py"
            and file.startswith(os.path.dirname(home) + os.sep)
        ):
            return False
    return not file.startswith(_standard_library()) or "site-packages" in file or "dist-packages" in file


@lru_cache(8192)
def is_standard(code: CodeType) -> bool:
    """Return whether code belongs to Python's standard library."""
    file = code.co_filename
    return file.startswith(("<frozen", *_standard_library())) and "-packages" not in file


def is_users(value: Any) -> bool:
    """Return whether a class or module is the user's."""
    return is_users_name(str(getattr(value, "__module__", None) or getattr(value, "__name__", "")))


def is_users_name(name: str) -> bool:
    """Return whether a module is the user's, by its name."""
    top = name.partition(".")[0]
    return (top not in LIBRARIES and top not in sys.stdlib_module_names) or top == "__main__"


class Names(NamedTuple):
    """The names in code.

    Attributes:
      loaded: The names of globals and attributes, and `texts`.
      texts: Strings by which attributes may be looked up.
      every: Whether attributes may be looked up by names that are computed.
    """

    loaded: frozenset[str]
    texts: frozenset[str]
    every: bool


@lru_cache(4096)
def names_in(code: CodeType) -> Names:
    """Return the names in code, and in the functions that it defines."""
    loaded, texts, every = set(code.co_names), set[str](), not _EVERY_NAME.isdisjoint(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_in(constant)
            loaded |= inner.loaded
            texts |= inner.texts
            every |= inner.every
        else:
            parts = constant if isinstance(constant, (tuple, frozenset)) else (constant,)
            texts.update(one for one in parts if isinstance(one, str) and one.isidentifier())
    return Names(frozenset(loaded | texts), frozenset(texts), every)


@lru_cache(4096)
def imports_in(code: CodeType) -> tuple[str, ...]:
    """Return the modules that code imports when it runs."""
    return tuple(step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME")


def nested_in(code: CodeType) -> list[CodeType]:
    """Return code and that of all functions that it defines."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [code, *(one for found in map(nested_in, inner) for one in found)]


def named_by(function: Any) -> set[CodeType]:
    """Return the code of a function, and of the functions of user code that it names, directly or indirectly."""
    found: set[CodeType] = set()
    owner = function.__self__ if ismethod(function) else None
    todo = [function.__func__ if ismethod(function) else getattr_static(function, "__wrapped__", function)]
    while todo:
        one = todo.pop()
        if not isfunction(one) or not is_user_code(one.__code__) or one.__code__ in found:
            continue
        found.update(nested_in(one.__code__))
        names = names_in(one.__code__).loaded
        todo += [one.__globals__[name] for name in names if name in one.__globals__]
        todo += [cell.cell_contents for cell in one.__closure__ or () if is_full(cell)]
        todo += [getattr_static(type(owner), name, None) for name in names if owner is not None]
    return found


def by_line(code: CodeType) -> Iterator[tuple[int, dis.Instruction]]:
    """Yield the instructions of code, each with its line."""
    lines = {begin: line for begin, _, line in code.co_lines()}
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = lines.get(step.offset) or line
        yield line, step


_STORES = frozenset(("STORE_ATTR", "STORE_GLOBAL", "STORE_NAME", "STORE_DEREF", "DELETE_ATTR", "DELETE_GLOBAL"))


def line_storing(codes: Any, name: str) -> str:
    """Return the first place in code that assigns to a name, as ` at file:line`; "" if there is none."""
    for code in codes:
        for line, step in by_line(code):
            if step.opname in _STORES and step.argval == name:
                return f" at {code.co_filename}:{line}"
    return ""


def functions_of(member: Any) -> list[Any]:
    """Return what a member of a class consists of: itself, and the functions of a property or another descriptor."""
    parts = ["fget", "fset", "__func__", "func", "dispatcher"]
    parts += ["args", "keywords"] if isinstance(member, partialmethod) else []
    found = [member, *(getattr(member, part, None) for part in parts)]
    return [one for one in found if one is not None]
