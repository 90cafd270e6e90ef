"""Which line of the user's code ran an op: noted in a microsecond, looked up when somebody asks."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType
from typing import Any

from retrotape._tf import tf
from retrotape.ir import Frame

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TOUR = os.path.join(_HERE, "demo") + os.sep  # programs as a user writes them, so their lines are the user's
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


def _roots() -> tuple[str, ...]:
    packages = [_HERE, os.path.dirname(os.path.abspath(tf.__file__))]
    keras = sys.modules.get("keras")
    if keras is not None and keras.__file__:
        packages.append(os.path.dirname(os.path.abspath(keras.__file__)))
    return tuple(package + os.sep for package in packages)


LARGEST = 4096  # number of files that are remembered
_foreign: dict[str, bool] = {}


def is_foreign(filename: str) -> bool:
    """Say whether a file is TensorFlow's, Keras', Python's or ours, so that no user looks for a mistake there."""
    hidden = _foreign.get(filename)
    if hidden is None:
        if len(_foreign) >= LARGEST:  # every cell of a notebook is a file, and every function that AutoGraph rewrites
            _foreign.clear()
        in_library = filename.startswith(_roots()) or "__autograph_generated_file" in filename
        in_stdlib = filename.startswith(_STDLIB) and "site-packages" not in filename
        hidden = in_library or in_stdlib or filename.startswith("<frozen")
        hidden = _foreign[filename] = hidden and not filename.startswith(_TOUR)
    return hidden


def here(depth: int) -> tuple[CodeType, int] | None:
    """Return the innermost place that is the user's, from `depth` calls up; None where there is none."""
    frame = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        hidden = _foreign.get(code.co_filename)
        if hidden is None:
            hidden = is_foreign(code.co_filename)
        if not hidden:
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None


def stacklevel() -> int:
    """Return the `stacklevel` with which the caller has to warn, so that the user's line is named."""
    frame: Any = sys._getframe(1)
    level = 1
    while frame.f_back is not None and is_foreign(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def looker(depth: int) -> tuple[CodeType, int] | None:
    """Return the place of the user's that looks at a value, from `depth` calls up; None where it is we who look."""
    frame: Any = sys._getframe(depth)
    while frame is not None and is_foreign(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_HERE + os.sep):
            return None
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


def in_moments() -> bool:
    """Say whether `tf.nn.moments` is running: its `stop_gradient` is not meant for derivatives of derivatives."""
    frame: Any = sys._getframe(1)
    while frame is not None and is_foreign(frame.f_code.co_filename):
        if is_moments(frame.f_code.co_filename, frame.f_code.co_name):
            return True
        frame = frame.f_back
    return False


def is_moments(filename: str, function: str) -> bool:
    """Say whether a place is in `tf.nn.moments`."""
    return function.startswith("moments") and filename.endswith("nn_impl.py")


class Frames:
    """A table of places, numbered as they are first seen: `(code, instruction)`, or an operation of a graph."""

    __slots__ = ("_numbers", "_places")

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._places: list[Any] = []

    def number(self, place: Any) -> int:
        """Return the number of a place."""
        # By identity: a code object computes its hash from all that it contains, every time.
        key = (id(place[0]), place[1]) if type(place) is tuple else id(place)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._places)
            self._places.append(place)
        return number

    def place(self, number: int) -> Any:
        """Return the place of a number."""
        return self._places[number]

    def resolve(self) -> tuple[Frame, ...]:
        """Return every place as file, line and function."""
        return tuple(_resolve(place) for place in self._places)


def _resolve(place: Any) -> Frame:
    if place is None:
        return Frame("<unknown>", 0, "?")
    if isinstance(place, Frame):  # of a tape that was loaded
        return place
    if not isinstance(place, tuple):
        lines = [line for line in place.traceback if not is_foreign(line.filename)]
        return Frame(lines[-1].filename, lines[-1].lineno, lines[-1].name) if lines else Frame("<graph>", 0, "?")
    code, instruction = place
    return Frame(code.co_filename, _line(code, instruction), code.co_name)


def _line(code: CodeType, instruction: int) -> int:
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            return number
    return code.co_firstlineno
