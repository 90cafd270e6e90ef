"""The process that holds an isolated tape, seen from the parent: one request, one reply, with a timeout."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import finalize

from retrotape._locks import new_lock
from retrotape.errors import IsolationError, RemoteError
from retrotape.files.isolated import _deaths, _wire
from retrotape.files.isolated._confinement import Confinement
from retrotape.files.isolated._launch import launch
from retrotape.files.isolated._note import make_note, read_note
from retrotape.files.isolated._references import RemoteObjects

_START = 120.0  # seconds for TensorFlow to be imported, on a slow machine
_DYING = 5.0  # seconds from the end of its pipe to its exit
_PRINTED = 2**16  # the capacity of a pipe


class Process:
    """A separate process that answers requests.

    Args:
      path: The tape, absolute.
      memory: How many bytes it may take beyond what TensorFlow takes.
      timeout: How many seconds a query may take.
      settings: Further settings that it needs before it is confined.
      make_tape: Makes the stand-in for a tape that a replay returned.
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
        self._gone: str | None = None  # why it can no longer be queried
        self._owner = os.getpid()
        self._pending = False
        self._count = 0
        self._lock = new_lock()
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
        """Send a request; return its result and its warnings."""
        found = self._exchange({"what": what, "args": args, **fields}, doing or f"answered {what}", self.timeout)
        return found["result"], found["warnings"]

    def number(self, value: Any) -> int:
        """Return the number of the remote object that `value` stands for."""
        number = self._objects.number(value)
        assert number is not None
        return number

    # ------------------------------------------------------------------ further requests by results

    def fetch(self, number: int) -> Any:
        """Return the value of a variable, or of a version of one."""
        return self.ask("fetch", number)[0]

    def take(self, number: int, var: int) -> Any:
        """Return one of the tensors that `tensors` found."""
        return self.ask("take", number, var)[0]

    def tape(self, known: list[Any]) -> Any:
        """Return the stand-in for a tape that a replay made."""
        assert self._make_tape is not None
        return self._make_tape(self, *known)

    # ------------------------------------------------------------------ messages

    def close(self, reason: str = "It was closed") -> None:
        """End it."""
        self._gone = self._gone or reason
        self._stop()

    def is_alive(self) -> bool:
        """Return whether it accepts requests."""
        return self._gone is None

    def _exchange(self, message: dict[str, Any], doing: str, timeout: float) -> dict[str, Any]:
        if os.getpid() != self._owner:  # two processes would read from one pipe
            raise IsolationError(
                "This isolated tape belongs to the process that loaded it, of which this one is a copy (os.fork)",
                f"Load it here: `rt.load({self.path!r}, isolate=True)`",
            )
        with self._lock:
            if self._pending:  # interrupted, and the next message may be the result of that request
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
                self._pending = False  # nothing was sent
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
        self._pending = True
        self._unused += self._objects.unused()
        _wire.send(self._child.stdin, {**message, "unused": self._unused}, self._objects.pack)
        self._unused = []
        unpack = partial(self._objects.unpack, self)
        most = {"most": _wire.MOST_OF_TENSORS} if message.get("what") == "tensors" else {}
        found = _wire.receive(self._child.stdout, self.memory, unpack, is_over=lambda: deadline.is_over, **most)
        if not isinstance(found, dict) or found.get("number") != message["number"]:
            raise ValueError("it is the result of another request")
        if deadline.is_over:  # the result arrived too late, and the process is gone
            raise EOFError
        self._pending = False
        return found

    def _result(self, found: dict[str, Any], doing: str) -> dict[str, Any]:
        if "error" not in found:
            return found
        name, text, ours, fields, running = found["error"]
        if name in ("MemoryError", "ResourceExhaustedError"):
            raise _deaths.out_of_memory(self.memory, running or doing)
        raise RemoteError.of(str(name), str(text), ours is True, dict(fields))

    def _failed(self, error: BaseException, doing: str, deadline: _Deadline) -> IsolationError:
        """Return the error to raise where there is no result; ends the process if it is alive."""
        alive = not isinstance(error, (EOFError, OSError))
        try:
            code = self._child.wait(0.0 if alive else _DYING)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        running = read_note(self._note)
        doing = f"ran {running}" if running else doing
        if deadline.is_over:
            found = _deaths.timed_out(deadline.timeout, doing)
        elif alive:
            found = _deaths.invalid_message(doing)
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
    """Kills a process after a timeout."""

    def __init__(self, child: subprocess.Popen[bytes], timeout: float) -> None:
        self.timeout, self.is_over, self._child = timeout, False, child
        self._timer = threading.Timer(min(timeout, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True

    def start(self) -> None:
        """Start the timer."""
        self._timer.start()

    def cancel(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        self._child.kill()


def _pipe() -> tuple[int, int]:
    """Return the two ends of a non-blocking pipe: output that does not fit is lost."""
    reading, writing = os.pipe()
    if os.name == "posix":
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
    return reading, writing


def _end(child: subprocess.Popen[bytes], note: int, printed: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that started it
    child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError:  # data that was not sent yet
                continue
    child.wait()
    os.close(note)
    os.close(printed)
