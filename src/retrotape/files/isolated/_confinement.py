"""The restrictions of the process that holds an untrusted tape, and how they are set up."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrotape.diagnose.memory import human
from retrotape.files.isolated import _landlock, _seccomp

ARENAS = 2  # of malloc; each reserves 64 MiB of address space
_ARENA, _STACK = 2**26, 2**23
_OPEN_FILES = 64
_DEATH_SIGNAL = 1  # of prctl
_ANYTHING = "NOT confined"


class Confinement(NamedTuple):
    """The restrictions of an isolated tape's process; `tape.confinement` is one. Printed, it is one line.

    Attributes:
      network: Whether connections are denied, and by which mechanism.
      files: Which files it can open, and which mechanism denies the others.
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
    """Confine this process permanently, as far as the system can, and return how far that is.

    TensorFlow must have been imported, because its files cannot be read afterwards; no op may have run, because
    Landlock does not apply to existing threads.

    Args:
      memory: How many bytes it may take beyond what it has.
      timeout: Seconds per query, for the result.
      files: Returns the files that it may read; called when the process can no longer do anything but read.
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


def end_with(parent: int | None) -> None:
    """End this process when its parent does, whatever it is doing then; None for a parent that is not known."""
    if sys.platform != "linux" or parent is None:
        return
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended meanwhile
        sys.exit(1)


def limit_memory(memory: int) -> bool:
    """Limit the memory of this process beyond what it has; return whether the system enforces that."""
    if sys.platform != "linux":
        return False
    import resource  # not available on Windows

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
    """Return the address space of the threads that TensorFlow will start, two for each processor."""
    return ARENAS * _ARENA + 2 * (os.cpu_count() or 1) * _STACK


def _threads() -> list[Any]:
    return os.listdir("/proc/self/task") if sys.platform == "linux" else [None]


def _succeeds(restrict: Callable[[], None]) -> bool:
    try:
        restrict()
    except OSError:
        return False  # reported in the result, and `isolate="strict"` raises
    return True
