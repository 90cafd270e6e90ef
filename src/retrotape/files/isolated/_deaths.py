"""Errors about a process that returned no result."""

from __future__ import annotations

import re
import signal

from retrotape.diagnose.memory import human
from retrotape.errors import IsolationError
from retrotape.files.isolated._note import printable

_NO_MEMORY = re.compile(
    r"std::bad_alloc|MemoryError|OOM when allocating|[Cc]annot allocate memory|pthread_create\(\) failed"
)
_CHECK = re.compile(r"Check failed: [^\n]*")
_AGAIN = "For another query load it again: `rt.load(path, isolate=True)`"


def timed_out(timeout: float, doing: str) -> IsolationError:
    """Return the error for a process that was stopped."""
    return IsolationError(
        f"The isolated process ran longer than timeout={timeout:g} s, the last of it while it {doing}, and was stopped",
        f"Allow more: `rt.load(path, isolate=True, timeout={2 * timeout:g})`",
    )


def out_of_memory(memory: int, doing: str) -> IsolationError:
    """Return the error for a process that reached the limit on memory."""
    return IsolationError(
        f"The isolated process needed more than memory={memory} ({human(memory)}) while it {doing}",
        f"If you trust the file, allow more: `rt.load(path, isolate=True, memory={2 * memory})`",
    )


def ended(code: int, doing: str, printed: str, memory: int) -> IsolationError:
    """Return the error for a process that ended with exit code `code`; `printed` is its last output."""
    if _NO_MEMORY.search(printed):
        return out_of_memory(memory, doing)
    lines = [line for line in printed.splitlines() if line.strip()]
    if code >= 0:
        detail = f": {printable(lines[-1])}" if lines else ""
        return IsolationError(f"The isolated process ended with code {code} while it {doing}{detail}", _AGAIN)
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    failed = _CHECK.search(printed)
    detail = f" ({printable(failed[0].strip())})" if failed else ""
    if name == "SIGKILL":
        detail = ", by the system if it is short of memory, or by another process"
    if name == "SIGSYS":
        detail = ", because it made a forbidden system call"
    if name == "SIGALRM":
        detail = ", its own clock: it ran longer than timeout= allows"
    return IsolationError(f"The isolated process was ended by {name} while it {doing}{detail}", _AGAIN)


def invalid_message(doing: str) -> IsolationError:
    """Return the error for a process that sent an invalid message."""
    return IsolationError(
        f"The isolated process sent an invalid message while it {doing}, and was stopped",
        "Do not trust this file: a process that holds an honest one does not do that",
    )
