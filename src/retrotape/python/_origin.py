"""Whose code it is: the user's, a library's whose state counts as far as it is told, or that of whoever calls it."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any

LIBRARY, NEUTRAL, USER = 0, 1, 2

# What their functions do with tensors are ops, which are recorded.
_LIBRARIES = ("tensorflow", "keras", "numpy", "retrotape")
# Packages that these call, and whose code does what it does for its caller; as does the standard library.
_HELPERS = frozenset(
    """
    _pytest absl astunparse flatbuffers gast google h5py hypothesis ml_dtypes namex opt_einsum optree packaging pluggy
    rich six tensorboard termcolor tree typing_extensions wrapt
    """.split()  # noqa: SIM905
)
# Parts of the standard library that keep nothing but caches, or make text; what they do is not looked at.
_CACHING = ("_py_abc.py", "abc.py", "linecache.py", "sre_compile.py", "sre_parse.py", "typing.py", "warnings.py")
_CACHING_FOLDERS = ("json", "logging", "re")
_PACKAGES = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
_STANDARD = tuple(
    os.path.join(path, "")
    for name in ("stdlib", "platstdlib")
    for path in {sysconfig.get_path(name), os.path.realpath(sysconfig.get_path(name))}
)


_FACTORIES = frozenset(("<module>", "outer_factory", "inner_factory"))  # in the files that AutoGraph writes


@lru_cache(8192)
def of_file(file: str) -> int:
    """Return whose code a file is.

    >>> of_file("train.py") == USER, of_file(os.__file__) == NEUTRAL
    (True, True)
    """
    if file.startswith(("<frozen importlib", "<frozen abc")) or "__autograph_generated_file" in file:
        return LIBRARY
    if file.startswith("<frozen"):
        return NEUTRAL
    if file.startswith(_homes()):
        return LIBRARY
    for folder in _PACKAGES:
        _, is_installed, path = file.rpartition(folder)
        if is_installed:
            return NEUTRAL if path.split(os.sep)[0].removesuffix(".py") in _HELPERS else USER
    for folder in _STANDARD:
        if file.startswith(folder):
            path = file[len(folder) :]
            return LIBRARY if path in _CACHING or path.split(os.sep)[0] in _CACHING_FOLDERS else NEUTRAL
    return USER


def _homes() -> tuple[str, ...]:
    """Return the folders of the libraries that are imported: a user's file may have the same name."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES]
    return tuple(os.path.dirname(one) + os.sep for one in files if one and os.path.basename(one) == "__init__.py")


def is_generated(code: CodeType) -> bool:
    """Return whether AutoGraph has made it of a function."""
    return "__autograph_generated_file" in code.co_filename and code.co_name not in _FACTORIES


def of_code(code: CodeType, space: Any) -> int:
    """Return whose code it is, given its globals: Python generates the methods of data classes, also of libraries."""
    file = code.co_filename
    if is_generated(code):
        return of_module(space.get("__name__"))  # it has the globals of the function that it was made of
    if not file.startswith("<") or file.startswith("<frozen"):
        return of_file(file)
    name = str(space.get("__name__"))
    if name.startswith("namedtuple_"):
        return NEUTRAL
    module = sys.modules.get(name)
    home = getattr(module, "__file__", None)
    is_own = name != "__main__" and home is not None and vars(module) is space
    return of_file(home) if is_own and home else USER


def of_module(name: Any) -> int:
    """Return whose code a module is, by its name."""
    home = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
    if isinstance(home, str):
        return of_file(home)
    top = name.partition(".")[0] if isinstance(name, str) else ""
    return NEUTRAL if top in sys.stdlib_module_names and top != "__main__" else USER


def of_class(kind: type) -> int:
    """Return whose code a class is: the user's if any of its functions is, as names can be anything."""
    for member in vars(kind).values():
        function = getattr(member, "__func__", member) if type(member) in (classmethod, staticmethod) else member
        if type(function) is FunctionType and of_code(function.__code__, function.__globals__) == USER:
            return USER
    return of_module(kind.__module__)


def runs_for_user(frame: FrameType | None, root: CodeType | None = None) -> bool:
    """Return whether the code that runs in a frame is the user's, or runs for it.

    Args:
      frame: The frame.
      root: The code of ours that has called the user's.
    """
    while frame is not None and frame.f_code is not root:
        origin = of_code(frame.f_code, frame.f_globals)
        if origin != NEUTRAL:
            return origin == USER
        frame = frame.f_back
    return frame is not None


def place_of(frame: FrameType | None) -> str:
    """Return the line of user code that runs in a frame, or called it, as ` at file:line`."""
    while frame is not None and of_code(frame.f_code, frame.f_globals) != USER:
        frame = frame.f_back
    return "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
