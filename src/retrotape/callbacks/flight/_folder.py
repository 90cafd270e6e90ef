"""The folder of one recording: the log, what its arrays are called, and a recorded step for each shape of batch."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from retrotape.callbacks.flight._log import NAMES, Log, Record, as_array, read

try:
    import fcntl
except ImportError:  # Windows: a recording is never known to be in use
    fcntl = None  # type: ignore[assignment]

_PREFIX = "recording-"
_own: set[str] = set()  # recordings of this process: to look at their locks would release them


def _lock(file: Any) -> None:
    """Lock a file as long as this process lives, or raise if another has."""
    if fcntl is not None:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Layout(NamedTuple):
    """What the arrays of a record are.

    Attributes:
      names: On the tape.
      dtypes: Names of dtypes of TensorFlow.
      shapes: Of each.
      reset: Names of variables that are also assigned between steps, such as those of metrics: they are not compared.
      exempt: Names of variables that were not finite from the beginning, such as a bound that is infinite.
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    reset: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()


class Recording:
    """The writing end of a recording.

    Args:
      folder: The folder of the flight recorder, which exists.
      keep: How many crashes stay there.
    """

    def __init__(self, folder: str, keep: int) -> None:
        began = time.strftime("%Y%m%d-%H%M%S")
        self.path = tempfile.mkdtemp(prefix=f"{_PREFIX}{began}-{os.getpid()}-", dir=folder)
        _own.add(os.path.realpath(self.path))
        self._lock = open(os.path.join(self.path, "lock"), "w")  # noqa: SIM115
        _lock(self._lock)  # not inherited by child processes, which may outlive this one
        with open(os.path.join(self.path, "settings.json"), "w") as file:
            json.dump({"keep": keep}, file)
        self.log = Log(self.path)
        self._known: dict[tuple[str, Layout], int] = {}
        self._numbers = count()
        self._used: dict[int, int] = {}  # the generation of the log that last used a layout

    def layout(self, kind: str, layout: Layout) -> int:
        """Return the number of a layout of that kind, "state" or "batch"; a new one is written to a file first."""
        number = self._known.get((kind, layout))
        if number is None:
            number = self._known[kind, layout] = next(self._numbers)
            path = self._layout_path(kind, number)
            with open(f"{path}.new", "w") as file:
                json.dump(layout, file)
            os.replace(f"{path}.new", path)
        self._used[number] = self.log.generation
        return number

    def forget_layouts(self) -> set[int]:
        """Remove the layouts of batches that are in neither file of the log, and return the numbers of the others.

        So that a training in which every batch has another shape does not collect them. Those of recorded steps stay.
        """
        old = [
            (key, number)
            for key, number in self._known.items()
            if key[0] == "batch" and self._used[number] < self.log.generation - 1
        ]
        for key, number in old:
            if not os.path.exists(self.template(number)):
                del self._known[key], self._used[number]
                with suppress(FileNotFoundError):
                    os.remove(self._layout_path("batch", number))
        return set(self._known.values())

    def _layout_path(self, kind: str, number: int) -> str:
        return os.path.join(self.path, f"{kind}-{number}.json")

    def template(self, layout: int) -> str:
        """Return the path of the recorded step for batches of a layout."""
        return template_path(self.path, layout)

    def refuse(self, layout: int, reason: str) -> None:
        """Leave a reason why there is no recorded step for batches of a layout."""
        with open(_reason_path(self.path, layout), "w") as file:
            file.write(reason)

    def close(self) -> None:
        """Close the files; those of a process that ends in order are of no use to anyone."""
        self.log.close()
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)
        _own.discard(os.path.realpath(self.path))


def template_path(folder: str, layout: int) -> str:
    """Return the path of the recorded step for batches of a layout."""
    return os.path.join(folder, f"batch-{layout}.tape")


def _reason_path(folder: str, layout: int) -> str:
    return os.path.join(folder, f"batch-{layout}.txt")


# ------------------------------------------------------------------ reading


def reason_of(folder: str, layout: int) -> str:
    """Return why there is no recorded step for batches of a layout."""
    try:
        with open(_reason_path(folder, layout)) as file:
            return file.read()
    except FileNotFoundError:
        return "no step was recorded for batches of its shape"


class Segment(NamedTuple):
    """A snapshot, and the batches of the steps after it.

    Attributes:
      step: The state is that before this step.
      state: By name.
      batches: Of each step from `step` on: the number of its layout, and arrays by name.
      reset: Names in the state that are not compared.
      exempt: Names in the state that were not finite from the beginning.
    """

    step: int
    state: dict[str, Any]
    batches: list[tuple[int, dict[str, Any]]]
    reset: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """The step after the last whose batch is there."""
        return self.step + len(self.batches)


def segments(folder: str) -> list[Segment]:
    """Return what a recording holds, the newest snapshot first; what was cut off is left out."""
    read_files = [read(os.path.join(folder, name)) for name in NAMES]
    whole = sorted((records for records in read_files if records), key=lambda records: -records[0].generation)
    return [found for records in whole if (found := _segment(folder, records)) is not None]


def _segment(folder: str, records: Sequence[Record]) -> Segment | None:
    state = named(folder, "state", records[0])
    batches = []
    for one in records[1:]:
        arrays = named(folder, "batch", one)
        if arrays is None:
            break
        batches.append((one.layout, arrays))
    if state is None:
        return None
    layout = _layout(folder, "state", records[0].layout)
    return Segment(records[0].step, state, batches, layout.reset, layout.exempt)


def named(folder: str, kind: str, one: Record) -> dict[str, Any] | None:
    """Return the arrays of a record by name; None if its layout is not there."""
    from retrotape.tf.core import tf  # late: to list recordings takes no TensorFlow

    try:
        layout = _layout(folder, kind, one.layout)
    except (OSError, ValueError):
        return None
    dtypes = [np.dtype(tf.as_dtype(name).as_numpy_dtype) for name in layout.dtypes]
    parts = zip(one.buffers, dtypes, layout.shapes, strict=True)
    return dict(zip(layout.names, (as_array(*part) for part in parts), strict=True))


def _layout(folder: str, kind: str, number: int) -> Layout:
    with open(os.path.join(folder, f"{kind}-{number}.json")) as file:
        return Layout(*json.load(file))


def left_over(folder: str) -> Iterator[str]:
    """Yield the recordings of processes that were killed, oldest first."""
    names = sorted(name for name in os.listdir(folder) if name.startswith(_PREFIX))
    for path in (os.path.join(folder, name) for name in names):
        if os.path.isdir(path) and not _in_use(path):
            yield path


def _in_use(path: str) -> bool:
    if os.path.realpath(path) in _own:
        return True
    try:
        with open(os.path.join(path, "lock"), "r+") as file:
            _lock(file)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
