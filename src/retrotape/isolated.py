"""A tape of a stranger, held by a process of its own with limits on memory, time and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection
from typing import Any
from weakref import finalize

from retrotape import _wire
from retrotape.errors import IsolationError, RemoteError

Tensor = Any


class IsolatedTape:
    """A loaded tape in another process; `rt.load(path, isolate=True)` makes it.

    Sources and targets are given by name. Use it in a `with` block, or close it.

    Args:
      path: The file.
      memory: How many bytes the process may take beyond TensorFlow's own.
      seconds: How long one question may take, and how much processor time the process gets in all.
      allow_ops: As for `rt.load`.
    """

    def __init__(
        self, path: str | os.PathLike[str], memory: int = 2**31, seconds: float = 60.0, allow_ops: Collection[str] = ()
    ) -> None:
        if sys.platform == "win32":
            raise IsolationError("Windows has no limits for processes that Python can set")
        self._memory, self._seconds = int(memory), float(seconds)
        limits = {"memory": self._memory, "seconds": max(1, int(seconds)) + 60, "allow_ops": sorted(allow_ops)}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "retrotape._isolated_child", os.path.abspath(os.fsdecode(path)), json.dumps(limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._end = finalize(self, _stop, self._child)
        self._lock = threading.Lock()
        self.names: tuple[str, ...] = tuple(self._receive(self._seconds + 60.0)["names"])

    def gradient(self, target: str, sources: Any, **options: Any) -> Any:
        """Return the gradients of a target by sources, as `Tape.gradient` does."""
        return self._ask("gradient", [target, sources], options)

    def vjp(self, target: str, sources: Any, cotangents: Any, **options: Any) -> Any:
        """Return the product of cotangents with the Jacobian, as `Tape.vjp` does."""
        return self._ask("vjp", [target, sources, cotangents], options)

    def jacobian(self, target: str, sources: Any, **options: Any) -> Any:
        """Return the Jacobian, as `Tape.jacobian` does."""
        return self._ask("jacobian", [target, sources], options)

    def batch_jacobian(self, target: str, source: str, **options: Any) -> Any:
        """Return the Jacobian of each row, as `Tape.batch_jacobian` does."""
        return self._ask("batch_jacobian", [target, source], options)

    def per_example(self, losses: str, sources: Any, **options: Any) -> Any:
        """Return the gradient of each loss, as `Tape.per_example` does."""
        return self._ask("per_example", [losses, sources], options)

    def jvp(self, target: str, sources: Any, tangents: Any, **options: Any) -> Any:
        """Return how the target moves along tangents, as `Tape.jvp` does."""
        return self._ask("jvp", [target, sources, tangents], options)

    def hvp(self, target: str, sources: Any, vectors: Any, **options: Any) -> Any:
        """Return products with the Hessian, as `Tape.hvp` does."""
        return self._ask("hvp", [target, sources, vectors], options)

    def hessian(self, target: str, sources: Any, **options: Any) -> Any:
        """Return the Hessian, as `Tape.hessian` does."""
        return self._ask("hessian", [target, sources], options)

    def value(self, tensor: str) -> Tensor:
        """Return the value of a tensor or variable."""
        return self._ask("value", [tensor], {})

    def __getitem__(self, name: str) -> Tensor:
        """Return the value of a tensor or variable."""
        return self.value(name)

    def __enter__(self) -> IsolatedTape:
        """Return the tape itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process."""
        self._end()

    def _ask(self, method: str, args: Any, options: Any) -> Any:
        with self._lock:
            if not self._end.alive:
                raise IsolationError("it was closed")
            assert self._child.stdin is not None
            try:
                _wire.send(self._child.stdin, {"method": method, "args": list(args), "options": options})
            except BrokenPipeError:
                raise self._died() from None
            return self._receive(self._seconds)["answer"]

    def _receive(self, seconds: float) -> Any:
        late = threading.Timer(seconds, self._child.kill)
        late.start()
        try:
            assert self._child.stdout is not None
            found = _wire.receive(self._child.stdout, self._memory)
        except (EOFError, ValueError):
            raise self._died(None if late.is_alive() else seconds) from None
        finally:
            late.cancel()
        if "error" in found:
            raise RemoteError.of(found["error"], found["text"], found["ours"])
        return found

    def _died(self, seconds: float | None = None) -> IsolationError:
        self._child.kill()
        code = self._child.wait()
        self._end()
        if seconds is not None:
            return IsolationError(f"it took more than {seconds:g} seconds", "allow more: `seconds=`")
        return IsolationError(f"it ended with code {code}, most likely for want of memory", "allow more: `memory=`")


def _stop(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                continue
    child.kill()
    child.wait()
