"""The server side: holds the tape, and serves requests until the pipe closes."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Collection
from typing import IO, Any, NamedTuple

from retrotape.execute import observe_ops
from retrotape.files.isolated._note import Note
from retrotape.files.isolated._references import HeldObjects
from retrotape.files.isolated._wire import receive, send
from retrotape.ir import LEAF, Eqn
from retrotape.tf.core import tf

# The methods of a tape that can be called, and the properties that can be read.
METHODS = frozenset(
    (
        *(
            "gradient",
            "backward",
            "backward_each",
            "gramian",
            "vjp",
            "stream",
            "jacobian",
            "batch_jacobian",
            "per_example",
        ),
        *("jvp", "hvp", "hessian", "versions", "at", "why", "first_nonfinite", "summary", "tensors", "value"),
        "report",
        "why_not_compiled",
        *("replay", "size", "__getitem__"),
    )
)
PROPERTIES = frozenset(("program", "variables"))
_GRACE = 10.0  # seconds after the timeout until this process ends itself, if the parent has not
_ERRORS = "retrotape.errors"


class Pipes(NamedTuple):
    """Where messages come from, and where they go."""

    requests: IO[bytes]
    results: IO[bytes]


class Server:
    """Serves requests about one tape, and about replays of it.

    Args:
      pipes: For requests and results.
      load: Returns the tape, from options of `rt.load`.
      note: Shared memory that shows what it is doing.
      memory: How many bytes a message may have.
      timeout: How many seconds a request may take.
    """

    def __init__(self, pipes: Pipes, load: Callable[..., Any], note: Note | None, memory: int, timeout: float) -> None:
        self._pipes, self._load, self._note = pipes, load, note
        self._memory, self._timeout = memory, timeout
        self._objects = HeldObjects(_described)
        self._tape: Any = None
        self._doing = ""
        self._requests: dict[str, Callable[..., Any]] = {
            "load": self._open,
            "query": self._query,
            "read": self._read,
            "next": lambda number: next(self._objects[number], None),
            "take": self._take,
            "fetch": self._fetch,
        }

    def run(self) -> None:
        """Serve requests until the pipe closes."""
        observe_ops(self._observe)
        while True:
            try:
                request = receive(self._pipes.requests, self._memory, self._objects.unpack)
            except EOFError:
                return
            for number, times in request["unused"]:
                self._objects.drop(number, times)
            _alarm(self._timeout + _GRACE)
            self._serve(request)
            _alarm(0.0)

    def _serve(self, request: dict[str, Any]) -> None:
        number = request["number"]
        self._write("")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = self._requests[request["what"]](*request["args"])
            reported = [
                [one.category.__name__, str(one.message)] for one in caught if one.category.__module__ == _ERRORS
            ]
            send(self._pipes.results, {"number": number, "result": found, "warnings": reported}, self._objects.pack)
        except Exception as error:
            send(self._pipes.results, {"number": number, "error": _explained(error, self._doing)})
        self._write("")

    # ------------------------------------------------------------------ requests

    def _open(self, options: dict[str, Any]) -> Any:
        self._tape = self._load(**options)
        return self._tape

    def _query(self, tape: Any, method: str, args: Collection[Any], options: dict[str, Any]) -> Any:
        if method not in METHODS:
            raise ValueError(f"{method} is not a query of an isolated tape")
        return getattr(tape, method)(*args, **options)

    def _read(self, tape: Any, name: str) -> Any:
        if name not in PROPERTIES:
            raise ValueError(f"{name} is not a property of an isolated tape")
        return getattr(tape, name)

    def _take(self, number: int, var: int) -> Any:
        tensors = self._objects[number]
        return tensors[[one.var for one in tensors.found].index(var)]

    def _fetch(self, number: int) -> Any:
        value = self._objects[number].value
        return value() if callable(value) else value

    # ------------------------------------------------------------------ the note

    def _observe(self, eqn: Eqn, backward: bool) -> None:
        self._write(f"{'the gradient of ' if backward else ''}{eqn.op}{self._place(eqn)}")

    def _place(self, eqn: Eqn) -> str:
        """Return the index of an equation and the user's line that ran it; "" if it is not on the tape."""
        if self._tape is None or not eqn.outputs:
            return ""
        trace = self._tape._session.trace
        producers, var = trace.program.producers, eqn.outputs[0]
        index = producers[var] if var < len(producers) else LEAF
        if index == LEAF or trace.program.eqns[index] is not eqn:
            return ""
        return f" (equation {index}, {trace.frames[eqn.frame]})"

    def _write(self, text: str) -> None:
        self._doing = text
        if self._note is not None:
            self._note.write(text)


def _described(value: Any) -> list[Any] | None:
    """Return the names and the size of a tape; None for anything else."""
    if not hasattr(value, "_session"):
        return None
    return [list(value.names), len(value._session.trace.program.eqns)]


def _explained(error: Exception, doing: str) -> list[Any]:
    kind = type(error)
    fields = {name: value for name, value in vars(error).items() if isinstance(value, (str, int, float, type(None)))}
    name = "ResourceExhaustedError" if isinstance(error, tf.errors.ResourceExhaustedError) else kind.__name__
    text = str(error.args[0]) if kind is KeyError and error.args else str(error)
    return [name, text, kind.__module__ == _ERRORS, fields, f"ran {doing}" if doing else ""]


def _alarm(seconds: float) -> None:
    """End this process after that many seconds; not at all after 0."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, min(seconds, 1e8))
