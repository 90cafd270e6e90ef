"""The live tape: records what runs on this thread while its block is open."""

from __future__ import annotations

import os
from abc import ABCMeta
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from weakref import ref

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.diagnose.memory import Memory, measure
from retrotape.errors import EmptyTapeError, TapeUseError
from retrotape.ir import Program
from retrotape.query import NAMED, Results, has_text, replace_names, variable_named
from retrotape.record import EagerSession, GraphSession, Session, Trace
from retrotape.tape._base import AnyTape
from retrotape.tape._show import as_html
from retrotape.tf.core import StockTape, as_is, graph_here, tf
from retrotape.tf.methods import locked
from retrotape.tf.nests import WATCHED, TensorRef, is_variable, take_apart
from retrotape.tf.scopes import Guard, again, entered_as_is, make_exit, spend
from retrotape.tf.selftest import check_once

if TYPE_CHECKING:
    from retrotape.tape.loaded import LoadedTape

Keep: TypeAlias = Literal["needed", "all", "leaves", "segments", "disk"]
_KEEP = get_args(Keep)


class _InPlaceOfStock(ABCMeta):
    """Makes `isinstance(tape, tf.GradientTape)` hold for stock tapes too while `tf.GradientTape` is our class."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or (isinstance(instance, StockTape) and tf.GradientTape is cls)


class _ExitOfTape:
    """Stop recording."""

    def __get__(self, tape: Tape | None, owner: type) -> Callable[..., None]:
        if tape is None:
            return _leave
        if tape._session is not None and tape._session.is_open:
            return partial(_leave, tape)  # `__exit__` is called explicitly
        found, tape._next = make_exit(_leave, tape, tape._abandon)
        return found


def _leave(tape: Tape, kind: Any, error: Any, traceback: Any) -> None:
    """Stop recording."""
    session = tape._session
    if session is not None and session.is_open:
        session.stop()
    spend(tape._opening)
    if tape._block is not None:
        spend(tape._block())


class Tape(AnyTape, metaclass=_InPlaceOfStock):
    """Record what runs; afterwards, differentiate any of it with respect to any of it.

    A drop-in replacement for `tf.GradientTape` that accepts its arguments. Nothing has to be watched. Query it as often
    as you like, in any order, inside the block or after it.

    Args:
      persistent: Accepted and ignored: every tape can be queried again.
      watch_accessed_variables: Only affects what `watched_variables` lists; reads are recorded either way.
      keep: Which values stay in memory: "needed", those that gradient rules read, as on the stock tape; "all";
        "leaves", those that cannot be recomputed; "segments", the leaves and a few checkpoints, so that memory grows
        with the square root of the length; "disk", the needed ones, with older ones in a file. Values that are not
        kept are recomputed on demand, a segment at a time.
      directory: With `keep="disk"`, the directory of that file; the system's temporary directory by default.

    >>> x = tf.constant(3.0)
    >>> with rt.Tape() as tape:
    ...     y = x * x
    >>> float(tape.gradient(y, x))
    6.0
    """

    def __init__(
        self,
        persistent: bool = False,
        watch_accessed_variables: bool = True,
        *,
        keep: Keep = "needed",
        directory: str | None = None,
    ) -> None:
        if isinstance(persistent, str):
            raise TypeError(f"persistent is True or False, got {persistent!r}. Did you mean keep={persistent!r}?")
        if keep not in _KEEP:
            raise ValueError(f"keep must be one of {', '.join(map(repr, _KEEP))}, got {keep!r}.")
        if directory is not None and keep != "disk":
            raise ValueError(f'directory= says where keep="disk" stores values, got it with keep={keep!r}.')
        if directory is not None and not os.path.isdir(directory):
            raise ValueError(f"directory must be an existing folder, got {directory!r}.")
        self._keep = keep
        self._directory = directory
        self._watch_accessed = watch_accessed_variables
        self._watched: dict[int, Any] = {}
        self._session: EagerSession | GraphSession | None = None  # of the last block
        self._eager_session: EagerSession | None = None
        self._results = Results()
        self._lock = new_lock()
        self._was_reset = False
        # Dropping one of these guards closes the block: the `with` statement holds one, and so does the tape.
        self._next: ref[Guard] | None = None  # of the `with` statement that is about to enter
        self._block: ref[Guard] | None = None  # of the `with` statement that has entered
        self._opening: Guard | None = None

    def __repr__(self) -> str:
        session = self._session
        if session is None:
            return "<tape: nothing recorded>"
        if session.trace.damaged:
            return "<tape: interrupted>"
        if not session.is_elsewhere and self._lock.acquire(blocking=False):  # else a query on another thread flushes
            try:
                session.flush()
            finally:
                self._lock.release()
        return f"<tape: {len(session.trace.program.eqns)} equations{', recording' if session.is_open else ''}>"

    def _repr_html_(self) -> str:
        title, session = repr(self), self._session
        if not isinstance(session, EagerSession) or session.trace.damaged or session.is_elsewhere:
            return as_html(title, None)
        if not self._lock.acquire(blocking=False):  # a query on another thread may add to what it shows
            return as_html(title, None)
        try:
            return as_html(title, session.trace)
        finally:
            self._lock.release()

    # ------------------------------------------------------------------ recording

    @entered_as_is
    def __enter__(self) -> Tape:
        """Start recording, or resume."""
        check_once(Tape)
        before = self._session, self._eager_session
        if before[0] is not None and before[0].is_open:
            raise TapeUseError(
                "This tape is recording already. Leave the block before entering it again, or use a second tape: "
                "`with rt.Tape() as inner:`."
            )
        session = self._session_here() or self._new_session()
        try:
            self._block, self._next = self._next, None
            self._opening = Guard(lambda _: session.close())
            self._session = session
            if isinstance(session, EagerSession):
                self._eager_session = session
            session.start()
            return self
        except BaseException:
            again(session.close)
            spend(self._opening)
            self._session, self._eager_session = before
            raise

    __exit__ = _ExitOfTape()

    def _abandon(self, mark: ref[Guard]) -> None:
        """Close the block whose guard, which `mark` refers to, was dropped."""
        if self._next is mark:
            self._next = None
        if self._block is mark and self._session is not None:
            self._session.close()
            spend(self._opening)

    def _new_session(self) -> EagerSession | GraphSession:
        graph = None if tf.executing_eagerly() else graph_here()
        return EagerSession(self._keep, self._directory) if graph is None else GraphSession(graph, self._eager_session)

    @locked
    def memory(self) -> Memory:
        """Return the memory that the tape holds, by line of user code; it prints as a table."""
        return measure(self._recorded().trace)

    @as_is
    def watch(self, tensor: Any) -> None:
        """Accept what `tf.GradientTape.watch` accepts, and Keras variables. There is no need to call it.

        Args:
          tensor: A tensor or variable, or a nest of them.
        """
        for part in take_apart(tensor, WATCHED).flat:
            if is_variable(part):
                self._watched[id(part)] = part
                if self._session is not None:
                    self._session.watch(part)
            elif self._session is not None:
                self._session.watch_tensor(part)

    @as_is
    def stop_recording(self) -> AbstractContextManager[None]:
        """Do not record what runs inside this block.

        >>> x = tf.constant(3.0)
        >>> with rt.Tape() as tape:
        ...     with tape.stop_recording():
        ...         scale = x * 2.0
        ...     y = x * scale
        >>> float(tape.gradient(y, x))
        6.0
        """
        if self._session is None or not self._session.is_open:
            raise TapeUseError("stop_recording() needs a tape that is recording. Use it inside `with tape:`.")
        return self._session.paused()

    @locked
    def reset(self) -> None:
        """Discard and free everything that was recorded; works inside the block and outside."""
        sessions = [session for session in (self._session, self._eager_session) if session is not None]
        for session in sessions:
            if isinstance(session, EagerSession):
                session.trace.damaged = True  # until `clear` has finished
        self._results.clear()
        self._watched.clear()
        self._was_reset = True
        for session in sessions:
            session.clear()

    @locked
    def watched_variables(self) -> tuple[Any, ...]:
        """Return the variables that were watched, then the trainable ones that were read."""
        found = dict(self._watched)
        if self._watch_accessed and self._session is not None:
            self._session.flush()
            for variable in self._session.variables():
                if variable.trainable:
                    found.setdefault(id(variable), variable)
        return tuple(found.values())

    @property
    def program(self) -> Program:
        """The program recorded so far: immutable, checked, printable."""
        with self._lock:
            return self._recorded().trace.snapshot()

    def _session_here(self) -> Session | None:
        """Return the session of the current context: eager code, or the graph being built."""
        graph = None if tf.executing_eagerly() else graph_here()
        for session in (self._session, self._eager_session):
            if session is not None and session.graph is graph:
                return session
        return None

    def _recorded(self) -> Session:
        session = self._session_here() or self._eager_session or self._session
        if session is None:
            raise EmptyTapeError("its block was never entered")
        if session.graph is not None and session.graph is not graph_here():
            raise TapeUseError(
                "This tape was recorded inside a tf.function and is queried outside it. "
                "Query it inside the function and return the result, or record in eager code."
            )
        if session.is_elsewhere:
            raise TapeUseError("This tape is recording on another thread. Query it there, or when its block is left.")
        session.flush()
        if self._was_reset and not session.trace.program.types and not session.is_open:
            raise EmptyTapeError("it was reset")
        return session

    def _names(self) -> Mapping[str, Any]:
        return {}

    def _tensor(self, reference: TensorRef) -> Tensor:
        raise TypeError("A tape that was not loaded has no references to tensors.")

    def _named(self, name: str) -> Any:
        return variable_named(self._recorded(), name)

    def _resolve_names(self, args: Any, options: Any) -> tuple[Any, Any]:
        if not has_text(args[:2]) and not any(has_text(options[key]) for key in NAMED & options.keys()):
            return args, options
        return replace_names(args, options, self._named)

    def _replayed(self, trace: Trace) -> LoadedTape:
        from retrotape.tape.loaded import LoadedTape  # imported late: most programs replay nothing

        return LoadedTape(trace, {})


GradientTape = Tape
"""`Tape`, under the name of the class that it replaces."""
