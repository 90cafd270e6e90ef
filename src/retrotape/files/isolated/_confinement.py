"""What the process that holds a stranger's tape cannot do, and how that is brought about."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrotape.diagnose.memory import human
from retrotape.files.isolated import _landlock, _seccomp

ARENAS = 2  # of malloc, each of which takes addresses for 64 MiB
_ARENA, _STACK = 2**26, 2**23
_OPEN_FILES = 64
_ANYTHING = "NOT confined"


class Confinement(NamedTuple):
    """What an isolated tape's process is kept from; `tape.confinement` is one. Printed, it is one line.

    Attributes:
      network: Whether connections are denied, and by what.
      files: Which files it can open, and by what it is kept from others.
      processes: Whether it can start processes or send signals to others.
      memory: How many bytes it may take beyond what TensorFlow takes; None where nothing bounds it.
      timeout: How many seconds a query may take.
    """

    network: str
    files: str
    processes: str
    memory: int | None
    timeout: float

    @property
    def is_complete(self) -> bool:
        """Whether everything is confined: no network, no files but the tape, no processes, bounded memory and time."""
        return self.memory is not None and not any(_ANYTHING in part for part in self[:3])

    def __str__(self) -> str:
        memory = _ANYTHING if self.memory is None else human(self.memory)
        parts = {"network": self.network, "files": self.files, "processes": self.processes, "memory": memory}
        return "; ".join(f"{name}: {part}" for name, part in {**parts, "time": f"{self.timeout:g} s a query"}.items())

    def __repr__(self) -> str:
        return f"<confinement: {self}>"


def confine(memory: int, timeout: float, files: Callable[[], Sequence[str]]) -> Confinement:
    """Confine this process for good, as far as the system can, and say how far that is.

    TensorFlow has to be imported by now, for its files cannot be read afterwards; no op may have run, for Landlock
    does not reach threads that are there already.

    Args:
      memory: How many bytes it may take beyond what it has.
      timeout: For what is said.
      files: Gives the files that it may read; called when nothing but reading is possible any more.
    """
    bounded = limit_memory(memory)
    calls = _seccomp.is_known() and _succeeds(_seccomp.restrict)
    denied = "denied (seccomp)" if calls else _ANYTHING
    if len(_threads()) == 1 and _landlock.version() and _succeeds(lambda: _landlock.restrict(files())):
        readable = "only the tape and this library, read-only (Landlock)"
    elif calls:
        readable = f"{_ANYTHING}: every file can be read, none written (seccomp, no Landlock)"
    else:
        readable = f"{_ANYTHING}: every file can be read, none made longer" if bounded else _ANYTHING
    return Confinement(denied, readable, denied, memory if bounded else None, timeout)


def limit_memory(memory: int) -> bool:
    """Bound what this process may take beyond what it has; say whether the system does so."""
    if sys.platform != "linux":
        return False
    import resource  # which Windows has not

    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    bounds = {
        resource.RLIMIT_AS: mapped + _for_threads() + memory,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (bound, bound))
    return True


def _for_threads() -> int:
    """Return what the threads take that TensorFlow will start, two for each processor; most of it is addresses only."""
    return ARENAS * _ARENA + 2 * (os.cpu_count() or 1) * _STACK


def _threads() -> list[Any]:
    return os.listdir("/proc/self/task") if sys.platform == "linux" else [None]


def _succeeds(restrict: Callable[[], None]) -> bool:
    try:
        restrict()
    except OSError:
        return False  # which is said, and `isolate="strict"` raises
    return True
