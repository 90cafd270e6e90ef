"""What is said of a process that gave no result."""

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


def too_long(timeout: float, doing: str) -> IsolationError:
    """It was stopped."""
    return IsolationError(
        f"The isolated process ran longer than timeout={timeout:g} s, the last of it while it {doing}, and was stopped",
        f"Allow more: `rt.load(path, isolate=True, timeout={2 * timeout:g})`",
    )


def too_much(memory: int, doing: str) -> IsolationError:
    """It ran into the limit on memory."""
    return IsolationError(
        f"The isolated process needed more than memory={memory} ({human(memory)}) while it {doing}",
        f"If you trust the file, allow more: `rt.load(path, isolate=True, memory={2 * memory})`",
    )


def ended(code: int, doing: str, printed: str, memory: int) -> IsolationError:
    """It ended by itself: `code` is how, `printed` what it printed last."""
    if _NO_MEMORY.search(printed):
        return too_much(memory, doing)
    lines = [line for line in printed.splitlines() if line.strip()]
    if code >= 0:
        said = f": {printable(lines[-1])}" if lines else ""
        return IsolationError(f"The isolated process ended with code {code} while it {doing}{said}", _AGAIN)
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    failed = _CHECK.search(printed)
    said = f" ({printable(failed[0].strip())})" if failed else ""
    if name == "SIGKILL":
        said = ", by the system if it is short of memory, or by somebody"
    if name == "SIGSYS":
        said = ", for it asked for a system call that is forbidden"
    if name == "SIGALRM":
        said = ", its own clock: it ran longer than timeout= allows"
    return IsolationError(f"The isolated process was ended by {name} while it {doing}{said}", _AGAIN)


def nonsense(doing: str) -> IsolationError:
    """It sent what is no message of ours."""
    return IsolationError(
        f"The isolated process sent what is no result while it {doing}, and was stopped",
        "Do not trust this file: a process that holds an honest one does not do that",
    )
