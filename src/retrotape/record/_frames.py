"""Which line of the user's code ran an op: noted in a microsecond, looked up when somebody asks."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType
from typing import Any

import tensorflow as tf

from retrotape.ir import Frame

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


def _roots() -> tuple[str, ...]:
    packages = [_HERE, os.path.dirname(os.path.abspath(tf.__file__))]
    keras = sys.modules.get("keras")
    if keras is not None and keras.__file__:
        packages.append(os.path.dirname(os.path.abspath(keras.__file__)))
    return tuple(package + os.sep for package in packages)


class Frames:
    """A table of places, numbered as they are first seen: `(code, instruction)`, or an operation of a graph."""

    __slots__ = ("_numbers",)
    _foreign: dict[str, bool] = {}  # noqa: RUF012 - a cache of what file names mean, for all tapes

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def here(self) -> int:
        """Return the number of the innermost place that is neither TensorFlow's, Keras' nor ours."""
        foreign = self._foreign
        frame = sys._getframe(2)
        place = None
        while frame is not None:
            code = frame.f_code
            hidden = foreign.get(code.co_filename)
            if hidden is None:
                hidden = self._classify(code.co_filename)
            if not hidden:
                place = (code, frame.f_lasti)
                break
            frame = frame.f_back  # type: ignore[assignment]
        numbers = self._numbers
        number = numbers.get(place)
        if number is None:
            number = numbers[place] = len(numbers)
        return number

    def of_operation(self, operation: Any) -> int:
        """Return the number of the place where an operation was added to its graph."""
        return self._numbers.setdefault(operation, len(self._numbers))

    def resolve(self) -> tuple[Frame, ...]:
        """Return every place as file, line and function."""
        return tuple(self._resolve(place) for place in self._numbers)

    @classmethod
    def _classify(cls, filename: str) -> bool:
        in_library = filename.startswith(_roots()) or "__autograph_generated_file" in filename
        in_stdlib = filename.startswith(_STDLIB) and "site-packages" not in filename
        hidden = cls._foreign[filename] = in_library or in_stdlib or filename.startswith("<frozen")
        return hidden

    def _resolve(self, place: Any) -> Frame:
        if place is None:
            return Frame("<unknown>", 0, "?")
        if not isinstance(place, tuple):
            lines = [entry for entry in place.traceback if not self._classify(entry.filename)]
            return Frame(lines[-1].filename, lines[-1].lineno, lines[-1].name) if lines else Frame("<graph>", 0, "?")
        code, instruction = place
        return Frame(code.co_filename, _line(code, instruction), code.co_name)


def _line(code: CodeType, instruction: int) -> int:
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            return number
    return code.co_firstlineno
