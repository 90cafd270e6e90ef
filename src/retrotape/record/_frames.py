"""Which line of the user's code ran an op: noted in a microsecond, looked up when somebody asks."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType
from typing import Any, NamedTuple

from retrotape.ir import Frame
from retrotape.tf.core import tf

# Code and instruction; and where that calls a function of Keras, its code.
Place = tuple[CodeType, int] | tuple[CodeType, int, CodeType]
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TOUR = os.path.join(_HERE, "cli", "_demo") + os.sep  # programs as a user writes them, so their lines are the user's
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


def _roots() -> tuple[str, ...]:
    packages = [_HERE, os.path.dirname(os.path.abspath(tf.__file__))]
    keras = sys.modules.get("keras")
    if keras is not None and keras.__file__:
        packages.append(os.path.dirname(os.path.abspath(keras.__file__)))
    return tuple(package + os.sep for package in packages)


_OURS, _LIBRARY, _INSTALLED = 0, 1, 2  # the user's; TensorFlow's, Keras', Python's or retrotape's; somebody else's
_kinds: dict[str, int] = {}
LARGEST = 4096  # number of files that are remembered
_PACKAGES = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
# What TensorFlow and Keras run through on their way: of no interest, wherever the user's code is.
_HELPERS = tuple(f"{folder}{name}{os.sep}" for folder in _PACKAGES for name in ("absl", "numpy", "optree", "wrapt"))


def _kind(filename: str) -> int:
    """Say whose a file is."""
    kind = _kinds.get(filename)
    if kind is None:
        if len(_kinds) >= LARGEST:  # every cell of a notebook is a file, and every function that AutoGraph rewrites
            _kinds.clear()
        in_library = filename.startswith(_roots()) or "__autograph_generated_file" in filename
        in_library = in_library or any(folder in filename for folder in _HELPERS)
        installed = any(folder in filename for folder in _PACKAGES)
        in_stdlib = filename.startswith(_STDLIB) and not installed
        kind = _LIBRARY if in_library or in_stdlib or filename.startswith("<frozen") else _INSTALLED * installed
        kind = _kinds[filename] = _OURS if filename.startswith(_TOUR) else kind
    return kind


def is_foreign(filename: str) -> bool:
    """Say whether a file is no user's, so that nobody looks for a mistake there: TensorFlow's, or installed."""
    return _kind(filename) != _OURS


def here(depth: int) -> Place | None:
    """Return the innermost place that is the user's, from `depth` calls up; None where there is none.

    Where that calls a function of Keras such as `ops.argmin`, the code of the function comes with it.

    Where all of the program is installed, as that of a command is, the innermost of an installed package that is
    neither TensorFlow nor Keras.
    """
    frame: Any = sys._getframe(depth)
    installed = called = None
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kind(code.co_filename)
        if kind == _OURS:
            if called is not None and _keras_room(called.co_filename):
                return code, frame.f_lasti, called
            return code, frame.f_lasti
        called = code
        if kind == _INSTALLED and installed is None:
            installed = code, frame.f_lasti
        frame = frame.f_back
    return installed


_rooms: dict[str, str] = {}
_ROOMS = ("ops", "random", "metrics", "losses", "activations")


def _keras_room(filename: str) -> str:
    """Return the part of Keras, as `ops`, whose functions a file defines; "" if it is none that people call so."""
    room = _rooms.get(filename)
    if room is None:
        _, found, rest = filename.rpartition(f"{os.sep}keras{os.sep}src{os.sep}")
        first = rest.split(os.sep)[0] if found else ""
        room = _rooms[filename] = first if first in _ROOMS else ""
    return room


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
    installed = None
    while frame is not None and is_foreign(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_HERE + os.sep):
            return None
        if installed is None and _kind(frame.f_code.co_filename) == _INSTALLED:
            installed = frame.f_code, frame.f_lasti
        frame = frame.f_back
    return installed if frame is None else (frame.f_code, frame.f_lasti)


def in_moments() -> bool:
    """Say whether `tf.nn.moments` is running: its `stop_gradient` is not meant for derivatives of derivatives."""
    frame: Any = sys._getframe(1)
    while frame is not None and _kind(frame.f_code.co_filename) == _LIBRARY:
        if is_moments(frame.f_code.co_filename, frame.f_code.co_name):
            return True
        frame = frame.f_back
    return False


def is_moments(filename: str, function: str) -> bool:
    """Say whether a place is in `tf.nn.moments`."""
    return function.startswith("moments") and filename.endswith("nn_impl.py")


class Called(NamedTuple):
    """A place of a tape that was loaded, where a function of Keras was called."""

    frame: Frame
    name: str


class Frames:
    """A table of places, numbered as they are first seen: `(code, instruction)`, or an operation of a graph."""

    __slots__ = ("_numbers", "_places")

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._places: list[Any] = []

    def number(self, place: Any) -> int:
        """Return the number of a place."""
        # By identity: a code object computes its hash from all that it contains, every time.
        key = (id(place[0]), place[1], id(place[-1])) if type(place) is tuple else id(place)
        number = self._numbers.get(key)
        if number is None:
            number = len(self._places)
            self._places.append(place)  # first: an exception may come between the two
            self._numbers[key] = number
        return number

    def place(self, number: int) -> Any:
        """Return the place of a number."""
        return self._places[number]

    def called(self, number: int) -> str:
        """Return the function of Keras that the user called at a place, such as `ops.argmin`; "" if it is none."""
        place = self._places[number]
        if isinstance(place, Called):
            return place.name
        if type(place) is not tuple or len(place) < 3 or place[2].co_name.startswith("_"):
            return ""
        return f"{_keras_room(place[2].co_filename)}.{place[2].co_name}"

    def all_called(self) -> list[tuple[int, str]]:
        """Return the places where functions of Keras were called, with their names."""
        named = [(number, self.called(number)) for number in range(len(self._places))]
        return [(number, name) for number, name in named if name]

    def frame(self, number: int) -> Frame:
        """Return one place as file, line and function."""
        return _resolve(self._places[number])

    def resolve(self) -> tuple[Frame, ...]:
        """Return every place as file, line and function."""
        return tuple(_resolve(place) for place in self._places)


def _resolve(place: Any) -> Frame:
    if place is None:
        return Frame("<unknown>", 0, "?")
    if isinstance(place, (Frame, Called)):  # of a tape that was loaded
        return place if isinstance(place, Frame) else place.frame
    if not isinstance(place, tuple):
        ours, installed = ([e for e in place.traceback if _kind(e.filename) == kind] for kind in (_OURS, _INSTALLED))
        lines = ours or installed
        return Frame(lines[-1].filename, lines[-1].lineno, lines[-1].name) if lines else Frame("<graph>", 0, "?")
    code, instruction = place[:2]
    return Frame(code.co_filename, _line(code, instruction), code.co_name)


def _line(code: CodeType, instruction: int) -> int:
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            return number
    return code.co_firstlineno
