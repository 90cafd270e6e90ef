"""The user's function, sent to other processes."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from retrotape.errors import FarmError
from retrotape.io import replace_file

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
    replace_file(path, data)
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
