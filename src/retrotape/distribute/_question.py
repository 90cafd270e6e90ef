"""The user's function: sent to other processes, and told apart from other functions."""

from __future__ import annotations

import dis
import hashlib
import inspect
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any

from retrotape.distribute._job import digest
from retrotape.distribute._partial import write_bytes
from retrotape.errors import FarmError

Question = Callable[[Any], Any]


def check(question: Any) -> None:
    """Raise if this is no function of a tape."""
    if not callable(question):
        raise TypeError(
            f"question= takes a function of a tape, got {type(question).__name__}: "
            '`lambda tape: tape.gradient("loss", "x")`.'
        )


def save(question: Question, folder: str) -> tuple[str, str]:
    """Write a function to a file for other processes; return the path and the digest of its content.

    Raises:
      TypeError: If it cannot be pickled.
    """
    pickler = _cloudpickle() or pickle  # the former takes lambdas, and functions of `__main__`
    try:
        data = pickler.dumps(question)
    except Exception as error:  # whatever __reduce__ and __getstate__ of the user's objects raise
        remedy = "Let it use nothing but its argument and what can be pickled"
        if pickler is pickle:
            remedy = "Define it with `def` at the top level of a module, or `pip install cloudpickle`"
        raise TypeError(
            f"question= cannot be sent to another process: {type(error).__name__}: {error}. {remedy}; in this process, "
            "`executor=None`, any function will do."
        ) from error
    checksum = hashlib.sha256(data).hexdigest()
    path = os.path.join(folder, f"question-{checksum[:32]}.pkl")
    write_bytes(path, data)
    return path, checksum


def _cloudpickle() -> ModuleType | None:
    for name in ("cloudpickle", "ray.cloudpickle"):  # Dask needs the first, Ray brings the second
        if name == "cloudpickle" or name.partition(".")[0] in sys.modules:
            try:
                return import_module(name)
            except ImportError:
                continue
    return None


@lru_cache(maxsize=1)
def load(path: str, checksum: str) -> Question:
    """Return the function in a file.

    Raises:
      FarmError: If the file is not what was written, or the function cannot be made here.
    """
    with open(path, "rb") as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise FarmError(f"{path!r} was changed or damaged", "Call again: it is written anew.")
    try:
        return pickle.loads(data)
    except (ImportError, AttributeError) as error:
        raise FarmError(
            f"question= cannot be found in the worker: {error}",
            "Define it in a module that workers can import, or `pip install cloudpickle` here and there.",
        ) from error


def fingerprint(question: Question) -> str:
    """Return a digest of what a function does: its code, its closure, the globals it reads, the files they are from.

    Raises:
      TypeError: If it refers to something that has no digest.
    """
    return digest(_described(question, set()))


def _described(value: Any, seen: set[int]) -> Any:
    """Return data that differ where a value differs."""
    if isinstance(value, ModuleType):
        return "module", value.__name__
    if isinstance(value, type):
        return "class", value.__module__, value.__qualname__, _source(value)
    function = inspect.unwrap(value) if callable(value) else value
    code = getattr(function, "__code__", None)
    if code is None or not hasattr(function, "__globals__"):  # other objects, partials too, are their state
        return "state", _state(value)
    if id(code) in seen:
        return "recursion", code.co_name
    seen.add(id(code))
    used = [cell.cell_contents for cell in function.__closure__ or ()]
    used += [function.__globals__[name] for name in _globals_of(code) if name in function.__globals__]
    own = [_described(item, seen) for item in used]
    defaults = _state((function.__defaults__, function.__kwdefaults__))
    return "function", list(_parts(code)), defaults, own, _source(function)


def _globals_of(code: CodeType) -> list[str]:
    names = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _globals_of(part)]
    return sorted(names.union(inner))


def _parts(code: CodeType) -> Iterator[Any]:
    yield code.co_code, code.co_names, code.co_varnames
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        else:
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


def _state(value: Any) -> bytes:
    try:
        return (_cloudpickle() or pickle).dumps(value)
    except Exception as error:
        raise TypeError(
            f"question= refers to something that cannot be pickled ({type(error).__name__}: {error}), so results in "
            "`work=` could not be told from those of another function. Leave out `work=`, or pass such things by file."
        ) from error


def _source(function: Any) -> str:
    """Return a digest of the file that a function or class is from; "" if there is none."""
    try:
        path = inspect.getsourcefile(function)
        with open(path or "", "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (OSError, TypeError):
        return ""
