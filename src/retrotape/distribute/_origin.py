"""Where code is from: a library, which has a version, or the user's own files, whose content counts."""

from __future__ import annotations

import hashlib
import os
import site
import sys
import sysconfig
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType

_OURS = "retrotape"  # it may be installed from a checkout, which is in no folder of packages


def imported(name: str) -> ModuleType | None:
    """Return a module that is imported, or None."""
    return sys.modules.get(name)


def is_library(module: str | None) -> bool:
    """Return whether a module is part of Python or of an installed package.

    >>> is_library("json"), is_library("numpy.linalg"), is_library("__main__")
    (True, True, False)
    """
    top = (module or "__main__").partition(".")[0]
    if top in ("__main__", "__mp_main__", _OURS):  # the first may be a file of a library that runs the user's code
        return top == _OURS
    file = _file_of(top)
    return is_library_file(file) if file else _is_of_python(top)


def _is_of_python(top: str) -> bool:
    return top in sys.builtin_module_names or top in sys.stdlib_module_names


def _file_of(top: str) -> str | None:
    found = imported(top)
    if found is not None:
        return getattr(found, "__file__", None)
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def is_library_file(path: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    if path.startswith("<frozen "):
        return True
    return os.path.realpath(path).startswith(_folders()) if os.path.isabs(path) else False


@lru_cache(maxsize=1)
def _folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [sysconfig.get_path(name) for name in names] + site.getsitepackages() + [site.getusersitepackages()]
    ours = os.path.dirname(os.path.dirname(__file__))
    return tuple(sorted({os.path.join(os.path.realpath(path), "") for path in (*found, ours) if path}))


def version_of(module: str | None) -> str:
    """Return the version of the library that a module is part of."""
    top = (module or "").partition(".")[0]
    if _is_of_python(top):
        return sys.version
    return str(getattr(imported(top), "__version__", "")) or source(_file_of(top))


def source(path: str | None) -> str:
    """Return a digest of the file that code is from; "" if there is none, as in a notebook."""
    try:
        with open(path or "", "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""
