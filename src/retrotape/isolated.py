"""A tape of a stranger, held by a process of its own with limits on memory, time and files."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import finalize

from retrotape import _wire
from retrotape.errors import IsolationError, NotDifferentiableWarning, RemoteError
from retrotape.inspection import Inspected

if TYPE_CHECKING:
    from retrotape.store import Limits

Tensor = Any
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _elsewhere(method: _Method) -> _Method:
    """Return the question of that name, asked of the other process: what cannot be a call of it is refused here."""
    signature = inspect.signature(getattr(Inspected, method.__name__))

    @wraps(method)
    def ask(self: IsolatedTape, *args: Any, **options: Any) -> Any:
        signature.bind(self, *args, **options)
        return self._ask(method.__name__, args, options)

    ask.__signature__ = signature  # type: ignore[attr-defined]
    return cast(_Method, ask)


class IsolatedTape:
    """A loaded tape in another process; `rt.load(path, isolate=True)` makes it.

    Sources and targets are given by name. Use it in a `with` block, or close it.

    Args:
      path: The file.
      memory: How many bytes the process may take beyond TensorFlow's own.
      seconds: How long one question may take. A minute more is what the process gets of processor time in all.
      allow_ops: As for `rt.load`.
      mmap: As for `rt.load`.
      limits: As for `rt.load`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        memory: int = 2**31,
        seconds: float = 60.0,
        allow_ops: Collection[str] = (),
        mmap: bool = False,
        limits: Limits | None = None,
    ) -> None:
        if sys.platform != "linux":
            raise IsolationError(f"{sys.platform} does not let Python bound what a process takes; Linux does")
        self._memory, self._seconds = int(memory), float(seconds)
        self._gone, self._late = "it was closed", False
        os.lstat(path)  # that there is nothing is said here as everywhere
        bounds = {
            "memory": self._memory,
            "seconds": max(1, int(seconds)) + 60,
            "load": {"allow_ops": sorted(allow_ops), "mmap": mmap},
            "limits": None if limits is None else limits._asdict(),
        }
        self._child = subprocess.Popen(
            [sys.executable, "-m", "retrotape._isolated_child", os.path.abspath(os.fsdecode(path)), json.dumps(bounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._end = finalize(self, _stop, self._child)
        self._lock = threading.Lock()
        about = self._exchange(None, self._seconds + 60.0)
        self.names: tuple[str, ...] = tuple(about["names"])
        self._equations = about["equations"]

    @_elsewhere
    def gradient(self, target: str, sources: Any, *args: Any, **options: Any) -> Any:
        """Return the gradients of a target by sources, as `Tape.gradient` does."""

    @_elsewhere
    def vjp(self, target: str, sources: Any, cotangents: Any, **options: Any) -> Any:
        """Return the product of cotangents with the Jacobian, as `Tape.vjp` does."""

    @_elsewhere
    def jacobian(self, target: str, sources: Any, *args: Any, **options: Any) -> Any:
        """Return the Jacobian, as `Tape.jacobian` does."""

    @_elsewhere
    def batch_jacobian(self, target: str, source: str, *args: Any, **options: Any) -> Any:
        """Return the Jacobian of each row, as `Tape.batch_jacobian` does."""

    @_elsewhere
    def per_example(self, losses: str, sources: Any, **options: Any) -> Any:
        """Return the gradient of each loss, as `Tape.per_example` does."""

    @_elsewhere
    def jvp(self, target: str, sources: Any, tangents: Any, **options: Any) -> Any:
        """Return how the target moves along tangents, as `Tape.jvp` does."""

    @_elsewhere
    def hvp(self, target: str, sources: Any, vectors: Any, **options: Any) -> Any:
        """Return products with the Hessian, as `Tape.hvp` does."""

    @_elsewhere
    def hessian(self, target: str, sources: Any, **options: Any) -> Any:
        """Return the Hessian, as `Tape.hessian` does."""

    def why(self, target: str, source: str, *, through_updates: bool = False, since: int | None = None) -> str:
        """Return what `Tape.why` says, as text."""
        return self._ask("why", [target, source], {"through_updates": through_updates, "since": since})

    def first_nonfinite(self, target: str | None = None) -> str | None:
        """Return what `Tape.first_nonfinite` says, as text; None if all is finite."""
        return self._ask("first_nonfinite", [target], {})

    def summary(self) -> str:
        """Return what `Tape.summary` says, as text."""
        return self._ask("summary", [], {})

    def value(self, tensor: str) -> Tensor:
        """Return the value of a tensor or variable."""
        return self._ask("value", [tensor], {})

    def __getitem__(self, name: str) -> Tensor:
        """Return the value of a tensor or variable."""
        if not isinstance(name, str):
            raise TypeError(f"Tensors of this tape are known by name: `tape['name']`; got {name!r}.")
        return self.value(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self.names or sum(n.endswith("/" + name) for n in self.names) == 1)

    def __repr__(self) -> str:
        return f"<isolated tape: {self._equations} equations, {len(self.names)} names>"

    def __getattr__(self, name: str) -> Any:
        """Say what can be asked instead of what cannot."""
        if name.startswith("_") or not (hasattr(Inspected, name) or name in ("replay", "save", "variables", "program")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(
            f"An isolated tape has no {name!r}: gradients, Jacobians, products, Hessians, values, why, first_nonfinite "
            "and summary come from the other process. For more, load the file here, if you trust it: `rt.load(path)`."
        )

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
                raise IsolationError(self._gone)
            asked = {"method": method, "args": list(args), "options": dict(options)}
            found = self._exchange(asked, self._seconds)
        for text in found.get("warnings", ()):
            warnings.warn(str(text), NotDifferentiableWarning, stacklevel=3)
        return found["answer"]

    def _exchange(self, message: Any, seconds: float) -> dict[str, Any]:
        """Send a message, if there is one, and return what comes back."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        late = threading.Timer(seconds, self._give_up)
        late.start()
        try:
            if message is not None:
                _wire.send(self._child.stdin, message)
            found = _wire.receive(self._child.stdout, self._memory)
        except _wire.UnsendableError:
            raise  # before anything was sent
        except Exception:  # it is gone, or what it says is no message
            raise self._died(seconds) from None
        except BaseException:  # the answer that is on its way would be taken for that of the next question
            self._leave("a question was interrupted")
            raise
        finally:
            late.cancel()
        if isinstance(found, dict) and "error" in found:
            raise RemoteError.of(str(found["error"]), str(found.get("text")), found.get("ours") is True)
        if not isinstance(found, dict):
            raise self._died(seconds)
        return found

    def _give_up(self) -> None:
        self._late = True
        self._child.kill()

    def _leave(self, reason: str) -> None:
        self._gone = reason
        self._end()

    def _died(self, seconds: float) -> IsolationError:
        self._child.kill()
        code = self._child.wait()
        if self._late:
            error = IsolationError(f"it took more than {seconds:g} seconds", "allow more: `seconds=`")
        elif code == -signal.SIGXCPU:
            error = IsolationError("it has used up its processor time", "allow more: `seconds=`")
        else:
            reason = f"it ended with code {code}, most likely for want of memory"
            error = IsolationError(reason, "allow more: `memory=`")
        self._leave(error.reason)
        return error


def _stop(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                continue
    child.kill()
    child.wait()
