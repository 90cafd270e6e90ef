"""Which line of user code ran an op: captured in a microsecond, resolved on demand."""

from __future__ import annotations

import linecache
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple, overload

from retrotape._types import Place
from retrotape.ir import Frame
from retrotape.tf.core import tf

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


def _roots() -> tuple[str, ...]:
    packages = [_HERE, os.path.dirname(os.path.abspath(tf.__file__))]
    keras = sys.modules.get("keras")
    if keras is not None and keras.__file__:
        packages.append(os.path.dirname(os.path.abspath(keras.__file__)))
    return tuple(package + os.sep for package in packages)


_USER, _LIBRARY, _INSTALLED = 0, 1, 2  # user code; TensorFlow, Keras, Python or retrotape; another installed package
_kinds: dict[str, int] = {}
LARGEST = 4096  # cached files
LONGEST_LINE = 200  # characters of a line of code
_LARGEST_FILE = 2**24  # bytes of a file of code
_PACKAGES = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
# Packages that TensorFlow and Keras call internally: never user code.
_HELPERS = tuple(f"{folder}{name}{os.sep}" for folder in _PACKAGES for name in ("absl", "numpy", "optree", "wrapt"))


def _kind(filename: str) -> int:
    """Return whether a file is user code, library code or another installed package."""
    kind = _kinds.get(filename)
    if kind is None:
        if len(_kinds) >= LARGEST:  # each notebook cell and each function converted by AutoGraph is a file
            _kinds.clear()
        in_library = filename.startswith(_roots()) or "__autograph_generated_file" in filename
        in_library = in_library or any(folder in filename for folder in _HELPERS)
        installed = any(folder in filename for folder in _PACKAGES)
        in_stdlib = filename.startswith(_STDLIB) and not installed
        kind = _LIBRARY if in_library or in_stdlib or filename.startswith("<frozen") else _INSTALLED * installed
        kind = _kinds[filename] = _USER if filename.startswith(tuple(_user_folders)) else kind
    return kind


_user_folders: list[str] = []


def count_as_users(folder: str) -> None:
    """Treat a folder of this package as user code: it has example programs, such as the demo."""
    _user_folders.append(os.path.join(folder, ""))
    _kinds.clear()


def is_foreign(filename: str) -> bool:
    """Return whether a file is not user code: TensorFlow's, or installed."""
    return _kind(filename) != _USER


class Spot(NamedTuple):
    """Where a place is on the stack: below which code, the innermost first."""

    place: Place
    codes: tuple[CodeType, ...]


def is_at(spot: Spot) -> bool:
    """Return whether the caller's caller is at a spot: faster than to look for the place."""
    frame: Any = sys._getframe(2)
    for code in spot.codes:
        if frame is None or frame.f_code is not code:
            return False
        frame = frame.f_back
    return frame is not None and frame.f_code is spot.place[0] and frame.f_lasti == spot.place[1]


def spot_of(place: Place) -> Spot | None:
    """Return where a place is on the stack of the caller's caller; None if nowhere."""
    frame: Any = sys._getframe(2)
    codes: list[CodeType] = []
    while frame is not None:
        if frame.f_code is place[0] and frame.f_lasti == place[1]:
            return Spot(place, tuple(codes))
        codes.append(frame.f_code)
        frame = frame.f_back
    return None


def here(depth: int) -> Place | None:
    """Return the innermost place in user code, starting `depth` frames up; None if there is none.

    If that place calls a Keras function such as `ops.argmin`, the result includes the code of that function.

    If the whole program is installed, as a console script is, return the innermost place in an installed package
    other than TensorFlow and Keras.
    """
    frame: Any = sys._getframe(depth)
    installed = called = None
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kind(code.co_filename)
        if kind == _USER:
            if called is not None and _keras_part(called.co_filename):
                return code, frame.f_lasti, called
            return code, frame.f_lasti
        called = code
        if kind == _INSTALLED and installed is None:
            installed = code, frame.f_lasti
        frame = frame.f_back
    return installed


_parts: dict[str, str] = {}
_PARTS = ("ops", "random", "metrics", "losses", "activations")


def _keras_part(filename: str) -> str:
    """Return the Keras namespace, such as `ops`, whose functions a file defines; "" if it is not a public one."""
    part = _parts.get(filename)
    if part is None:
        _, found, rest = filename.rpartition(f"{os.sep}keras{os.sep}src{os.sep}")
        first = rest.split(os.sep)[0] if found else ""
        part = _parts[filename] = first if first in _PARTS else ""
    return part


def stacklevel() -> int:
    """Return the `stacklevel` that makes a warning of the caller point to the line of user code."""
    frame: Any = sys._getframe(1)
    level = 1
    while frame.f_back is not None and is_foreign(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def reader_place(depth: int) -> tuple[CodeType, int] | None:
    """Return the place in user code that reads a value, starting `depth` frames up; None if this library reads it.

    The innermost code decides that does not read for its caller: an optimizer of Keras reads for the user, even if this
    library calls it. Where there is no user code, as on a thread of Keras, its place is returned.
    """
    frame: Any = sys._getframe(depth)
    reader = installed = None
    while frame is not None and is_foreign(frame.f_code.co_filename):
        filename = frame.f_code.co_filename
        if reader is None and not _reads_for_caller(filename):
            if filename.startswith(_HERE + os.sep):
                return None
            reader = frame.f_code, frame.f_lasti
        if installed is None and _kind(filename) == _INSTALLED:
            installed = frame.f_code, frame.f_lasti
        frame = frame.f_back
    return (installed or reader) if frame is None else (frame.f_code, frame.f_lasti)


_READING = tuple(os.path.join("keras", "src", part, "") for part in ("backend", "ops", "utils", "tree"))
_transparent: dict[str, bool] = {}


def _reads_for_caller(filename: str) -> bool:
    """Return whether code of a file reads values for whoever calls it: TensorFlow, Python, and helpers of Keras."""
    found = _transparent.get(filename)
    if found is None:
        if len(_transparent) >= LARGEST:
            _transparent.clear()
        is_keras = f"{os.sep}keras{os.sep}src{os.sep}" in filename and not any(part in filename for part in _READING)
        is_users = "__autograph_generated_file" in filename or filename.startswith(_HERE + os.sep)
        found = _transparent[filename] = _kind(filename) == _LIBRARY and not is_keras and not is_users
    return found


def in_moments() -> bool:
    """Return whether `tf.nn.moments` is running: its `stop_gradient` is not meant for higher-order derivatives."""
    frame: Any = sys._getframe(1)
    while frame is not None and _kind(frame.f_code.co_filename) == _LIBRARY:
        if is_moments(frame.f_code.co_filename, frame.f_code.co_name):
            return True
        frame = frame.f_back
    return False


def is_moments(filename: str, function: str) -> bool:
    """Return whether a place is in `tf.nn.moments`."""
    return function.startswith("moments") and filename.endswith("nn_impl.py")


class SavedPlace(NamedTuple):
    """A place on a loaded tape."""

    frame: Frame
    called: str = ""  # the Keras function that was called there
    code: str = ""  # the text of the line, if it was saved


class FrameTable(Sequence[Frame]):
    """The places of a program, numbered by first use; each is resolved to a line on first read.

    A place is `(code, instruction)`, an operation of a graph, or a `SavedPlace` of a loaded tape.
    """

    __slots__ = ("_frames", "_numbers", "_places")

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._numbers: dict[Any, int] = {}
        self._places: list[Place] = []
        self._frames: dict[int, Frame] = {}
        for place in places:
            self.number(place)

    def number(self, place: Place) -> int:
        """Return the number of a place, adding it if it is new."""
        # By identity: hashing a code object hashes its contents each time.
        key = (id(place[0]), place[1], id(place[-1])) if type(place) is tuple else id(place)
        number = self._numbers.get(key)
        if number is None:
            number = len(self._places)
            self._places.append(place)  # first: an exception may occur between the two
            self._numbers[key] = number
        return number

    def place(self, number: int) -> Place:
        """Return the place with a number."""
        return self._places[number]

    def copy(self, count: int | None = None) -> FrameTable:
        """Return an independent copy, of the first `count` places if given."""
        twin = FrameTable()
        if count is None or count == len(self._places):
            twin._numbers, twin._places = self._numbers.copy(), self._places.copy()
        else:
            twin._numbers, twin._places = dict(islice(self._numbers.items(), count)), self._places[:count]
        twin._frames = {number: frame for number, frame in self._frames.items() if number < len(twin._places)}
        return twin

    def called(self, number: int) -> str:
        """Return the Keras function that user code called at a place, such as `ops.argmin`; "" if none."""
        place = self._places[number]
        if isinstance(place, SavedPlace):
            return place.called
        if type(place) is not tuple or len(place) < 3 or place[2].co_name.startswith("_"):
            return ""
        return f"{_keras_part(place[2].co_filename)}.{place[2].co_name}"

    def saved_code(self, number: int) -> str | None:
        """Return the text of a line as a loaded tape has it; None for a place of this process."""
        place = self._places[number]
        return place.code if isinstance(place, SavedPlace) else None

    def all_called(self) -> list[tuple[int, str]]:
        """Return the places where Keras functions were called, with the function names."""
        named = [(number, self.called(number)) for number in range(len(self._places))]
        return [(number, name) for number, name in named if name]

    def all_code(self) -> list[tuple[int, str]]:
        """Return the places with the text of their lines, where it is known.

        Of a loaded tape, only what it was saved with: an untrusted one may name any file of this machine, and what is
        saved or reported here may be sent back.
        """
        saved = [(number, self.saved_code(number)) for number in range(len(self._places))]
        found = [(number, line_of(self[number]) if text is None else text) for number, text in saved]
        return [(number, text) for number, text in found if text]

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, number: int) -> Frame: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[Frame, ...]: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return tuple(self[one] for one in range(*number.indices(len(self))))
        frame = self._frames.get(number)
        if frame is None:
            frame = self._frames[number] = _resolve(self._places[number])
        return frame


def line_of(frame: Frame) -> str:
    """Return a line of code, only from a file that is code."""
    if not (frame.file in linecache.cache or (frame.file.endswith(".py") and _is_file(frame.file))):
        return ""
    return linecache.getline(frame.file, frame.line).strip()[:LONGEST_LINE]


def _is_file(path: str) -> bool:
    """Return whether there is a regular file of the size of a program: a pipe or a device might never end."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_FILE


def _resolve(place: Any) -> Frame:
    if place is None:
        return Frame("<unknown>", 0, "?")
    if isinstance(place, SavedPlace):
        return place.frame
    if not isinstance(place, tuple):
        user, installed = ([e for e in place.traceback if _kind(e.filename) == kind] for kind in (_USER, _INSTALLED))
        lines = user or installed
        return Frame(lines[-1].filename, lines[-1].lineno, lines[-1].name) if lines else Frame("<graph>", 0, "?")
    code, instruction = place[:2]
    return Frame(code.co_filename, _line(code, instruction), code.co_name)


def _line(code: CodeType, instruction: int) -> int:
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            return number
    return code.co_firstlineno
