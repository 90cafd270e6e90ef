"""The process that holds an isolated tape, as seen from here: one message there, one back, within a time."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import finalize

from retrotape.errors import IsolationError, RemoteError
from retrotape.files.isolated import _deaths, _wire
from retrotape.files.isolated._confinement import Confinement
from retrotape.files.isolated._launch import launch
from retrotape.files.isolated._note import make_note, read_note
from retrotape.files.isolated._references import RemoteObjects

_START = 120.0  # seconds for TensorFlow to be imported, on a slow machine
_DYING = 5.0  # seconds from where its pipe is closed to its end
_PRINTED = 2**16  # as much as a pipe holds


class Process:
    """A process of its own, that can be asked.

    Args:
      path: The tape, absolute.
      memory: How many bytes it may take beyond what TensorFlow takes.
      timeout: How many seconds a query may take.
      settings: What else it has to know before it is confined.
      make_tape: Makes what stands for a tape that a replay returned.
    """

    def __init__(
        self,
        path: str,
        memory: int,
        timeout: float,
        settings: dict[str, Any],
        make_tape: Callable[..., Any] | None = None,
    ) -> None:
        self.path, self.memory, self.timeout, self._make_tape = path, memory, timeout, make_tape
        self._gone: str | None = None  # why it can no longer be asked
        self._owner = os.getpid()
        self._unanswered = False
        self._count = 0
        self._lock = threading.RLock()
        self._objects = RemoteObjects()
        self._unused: list[tuple[int, int]] = []
        self._note = make_note()
        self._printed, errors = _pipe()
        try:
            self._child = launch(self._note, errors)
        except BaseException:
            os.close(self._note)
            os.close(self._printed)
            raise
        finally:
            os.close(errors)
        self._stop = finalize(self, _end, self._child, self._note, self._printed, self._owner)
        setup = {"path": path, "memory": memory, "timeout": timeout, **settings}
        known = self._exchange(setup, "started", _START)["confinement"]
        self.confinement = Confinement(*known)

    def ask(self, what: str, *args: Any, doing: str = "", **fields: Any) -> Any:
        """Return the result of a request, and the warnings that came with it."""
        found = self._exchange({"what": what, "args": args, **fields}, doing or f"answered {what}", self.timeout)
        return found["result"], found["warnings"]

    def number(self, value: Any) -> int:
        """Return the number of something that stands for an object of the process."""
        number = self._objects.number(value)
        assert number is not None
        return number

    # ------------------------------------------------------------------ what results are asked for more with

    def fetch(self, number: int) -> Any:
        """Return the value of a variable, or of a version of one."""
        return self.ask("fetch", number)[0]

    def take(self, number: int, var: int) -> Any:
        """Return one of the tensors that `tensors` found."""
        return self.ask("take", number, var)[0]

    def tape(self, known: list[Any]) -> Any:
        """Return what stands for a tape that a replay made."""
        assert self._make_tape is not None
        return self._make_tape(self, *known)

    # ------------------------------------------------------------------ messages

    def close(self, reason: str = "It was closed") -> None:
        """End it."""
        self._gone = self._gone or reason
        self._stop()

    def is_alive(self) -> bool:
        """Say whether it can be asked."""
        return self._gone is None

    def _exchange(self, message: dict[str, Any], doing: str, timeout: float) -> dict[str, Any]:
        if os.getpid() != self._owner:  # two would read from one pipe
            raise IsolationError(
                "This isolated tape belongs to the process that loaded it, of which this one is a copy (os.fork)",
                f"Load it here: `rt.load({self.path!r}, isolate=True)`",
            )
        with self._lock:
            if self._unanswered:  # interrupted, and what comes now may be the result of that
                self.close("A query was interrupted")
            if self._gone is not None:
                remedy = f"Load the tape again: `rt.load({self.path!r}, isolate=True)`"
                raise IsolationError(f"This isolated tape can no longer be queried. {self._gone}", remedy)
            self._count += 1
            self._drain()
            deadline = _Deadline(self._child, timeout)
            try:
                found = self._send_and_receive({**message, "number": self._count}, deadline)
            except _wire.UnsendableError:
                self._unanswered = False  # nothing was sent
                raise
            except Exception as error:
                raise self._failed(error, doing, deadline) from None
            except BaseException:
                self.close("A query was interrupted")
                raise
            finally:
                deadline.cancel()
        return self._result(found, doing)

    def _send_and_receive(self, message: dict[str, Any], deadline: _Deadline) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        deadline.start()
        self._unanswered = True
        self._unused += self._objects.unused()
        _wire.send(self._child.stdin, {**message, "unused": self._unused}, self._objects.pack)
        self._unused = []
        found = _wire.receive(self._child.stdout, self.memory, partial(self._objects.unpack, self))
        if not isinstance(found, dict) or found.get("number") != message["number"]:
            raise ValueError("it is the result of something else")
        if deadline.is_over:  # it came in the last moment, and the process is gone
            raise EOFError
        self._unanswered = False
        return found

    def _result(self, found: dict[str, Any], doing: str) -> dict[str, Any]:
        if "error" not in found:
            return found
        name, text, ours, fields, noted = found["error"]
        if name in ("MemoryError", "ResourceExhaustedError"):
            raise _deaths.too_much(self.memory, noted or doing)
        raise RemoteError.of(str(name), str(text), ours is True, dict(fields))

    def _failed(self, error: BaseException, doing: str, deadline: _Deadline) -> IsolationError:
        """Return what to raise where there is no result; the process has ended, or is ended."""
        alive = not isinstance(error, (EOFError, OSError))
        try:
            code = self._child.wait(0.0 if alive else _DYING)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        noted = read_note(self._note)
        doing = f"ran {noted}" if noted else doing
        if deadline.is_over:
            found = _deaths.too_long(deadline.timeout, doing)
        elif alive:
            found = _deaths.nonsense(doing)
        else:
            found = _deaths.ended(code, doing, self._drain(), self.memory)
        self.close(found.reason)
        return found

    def _drain(self) -> str:
        """Return what was printed since the last time."""
        try:
            return os.read(self._printed, _PRINTED).decode(errors="replace")
        except OSError:  # nothing
            return ""


class _Deadline:
    """Ends a process when a time is over."""

    def __init__(self, child: subprocess.Popen[bytes], timeout: float) -> None:
        self.timeout, self.is_over, self._child = timeout, False, child
        self._timer = threading.Timer(min(timeout, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True

    def start(self) -> None:
        """Begin to count."""
        self._timer.start()

    def cancel(self) -> None:
        """Stop counting."""
        self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._child.kill()


def _pipe() -> tuple[int, int]:
    """Return the two ends of a pipe of which neither blocks: what does not fit is lost."""
    reading, writing = os.pipe()
    if os.name == "posix":
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
    return reading, writing


def _end(child: subprocess.Popen[bytes], note: int, printed: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a copy of the process that started it, by a fork
    child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # what was not sent yet
                continue
    child.wait()
    os.close(note)
    os.close(printed)
