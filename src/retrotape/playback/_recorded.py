"""Record one call of a step: its ops, its Python code, and the Python state that it depends on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.ir import LEAF
from retrotape.lower import NotCompilableError
from retrotape.playback._arguments import Arguments, Results, containers_in
from retrotape.playback._guards import State, note_random_seed, note_rare_settings, note_settings, note_summaries
from retrotape.playback._library_state import LibraryState
from retrotape.playback._path import Path, Read, path_of
from retrotape.playback._pure import RANDOM
from retrotape.playback._python_run import PythonRun, is_printing
from retrotape.python import TooManyObjectsError, Walk, line_storing, named_by, parts_of, place_of, same
from retrotape.record import EagerSession, Trace, next_time
from retrotape.tf import core
from retrotape.tf.buffers import arrays_by_method, is_supported
from retrotape.tf.core import identity_of
from retrotape.tf.scopes import Scope


class NotSettledError(Exception):
    """The call created variables, or changed Python state: the next one may be another. The message says what.

    Attributes:
      is_users: Whether it changed something of user code, not of Keras.
    """

    def __init__(self, what: str, is_users: bool = False) -> None:
        super().__init__(what)
        self.is_users = is_users


class Recorded(NamedTuple):
    """A call that was recorded.

    Attributes:
      trace: Its trace.
      path: Its ops.
      state: The Python state that it depends on.
      results: What it returned.
      notes: What later calls will not do.
      runs_user_code: Whether any of the code that ran is not of a library.
    """

    trace: Trace
    path: Path
    state: State
    results: Results
    notes: list[str]
    runs_user_code: bool


class StepObserver:
    """Is notified of what Python reads, and of ops that are not recorded."""

    of_query = False

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self._gaps: list[tuple[int, int]] = []
        self._open: list[int] = []

    def on_gap(self) -> None:
        """Ops are about to run that are not recorded."""
        self._open.append(core.next_id())

    def on_gap_end(self) -> None:
        """Ops are recorded again."""
        if self._open:
            self._gaps.append((self._open.pop(), core.next_id()))

    def on_host_read(self, tensor: Tensor, only_shown: bool) -> None:
        """Python is about to read the value of a tensor."""
        place = place_of(sys._getframe(1)).removeprefix(" at ")
        if not (only_shown and is_printing(sys._getframe(1))):
            self.reads.append(Read(next_time(), tensor, place))

    def missed(self, identity: int) -> bool:
        """Return whether a tensor was made while ops were not recorded."""
        return any(begin < identity < end for begin, end in self._gaps)


class _started(Scope):
    """A session records in this block."""

    def __init__(self, session: EagerSession) -> None:
        self._session = session

    def enter(self) -> None:
        """Begin the block."""
        self._session.start(follow=False)

    def leave(self) -> None:
        """End the block."""
        self._session.stop()


class Recording:
    """Runs a step once, and records it.

    Args:
      function: The step.
      args: Its arguments; arrays are tensors.
      kwargs: Its arguments by name.
      arguments: The same, taken apart.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Arguments
    ) -> None:
        self._function, self._args, self._kwargs, self._arguments = function, args, kwargs, arguments
        self._observer = StepObserver()
        self._session = EagerSession("leaves")
        self._libraries = LibraryState()
        self._walk = Walk(self._libraries)
        self._run = PythonRun(self._walk)
        note_settings(self._walk)
        self._walk.add(function, getattr(function, "__name__", "the step"))
        for value in arguments.objects:
            self._walk.add(value, f"the argument of type {type(value).__name__}")
        self._result: Any = None
        nests = containers_in(args) + containers_in(kwargs)
        self._passed = [(one, parts_of(one)) for one in nests]

    def run(self) -> Any:
        """Run the step, and return its result."""
        session, recorder = self._session, self._session.trace
        recorder.observer = self._observer
        try:
            with _started(session):
                for tensor in self._arguments.tensors:
                    session.var_of(tensor)
                with nullcontext() if self._exports_memory() else arrays_by_method():
                    self._result = self._run(lambda: self._function(*self._args, **self._kwargs))
            return self._result
        finally:
            recorder.observer = None

    @property
    def trace(self) -> Trace:
        """What was recorded."""
        return self._session.trace

    def _exports_memory(self) -> bool:
        """Return whether the memory of tensors is read in a way that cannot be observed, or hidden from."""
        codes = (*named_by(self._function), *self._run.codes.values())
        return not is_supported() or any(not _EXPORTS.isdisjoint(code.co_names) for code in codes)

    def recorded(self) -> Recorded:
        """Return what was recorded.

        Raises:
          NotSettledError: If the next call should be recorded instead.
          NotCompilableError: If no later call can be played back.
        """
        session = self._session
        session.flush()
        trace, run = session.trace, self._run
        if any(eqn.op == "VarHandleOp" for eqn in trace.program.eqns):
            raise NotSettledError("it creates variables")
        if self._exports_memory():
            raise NotCompilableError("it may read the memory of tensors, by `memoryview` for instance: use `numpy()`")
        for reason in run.reasons:
            raise NotCompilableError(reason)
        self._finish(trace)
        self._check_state()
        self._check_gaps(trace)
        results = Results(self._result)
        reads = self._observer.reads
        if any(self._observer.missed(identity_of(read.tensor)) for read in reads):
            raise NotCompilableError("it reads values that are computed by ops that are not recorded")
        path = path_of(trace, self._arguments.tensors, results.tensors, reads)
        state = State(self._walk.entries, self._libraries.tensors(self._walk))
        return Recorded(trace, path, state, results, run.notes, bool(run.codes))

    def _finish(self, trace: Trace) -> None:
        """Note what the recorded ops depend on, and drop what the call has made, or was given."""
        walk = self._walk
        note_rare_settings(walk)
        if any(eqn.op in RANDOM for eqn in trace.program.eqns):
            note_random_seed(walk)
        if "summary" in walk.names or any("Summary" in eqn.op for eqn in trace.program.eqns):
            note_summaries(walk)
        given = [*self._arguments.tensors, *(one for one, _ in self._passed)]
        try:
            walk.finish(self._run.new | set(map(id, given)))
        except TooManyObjectsError as error:
            raise NotCompilableError(f"its state cannot be compared: {error}") from None
        self._run.finish()

    def _check_state(self) -> None:
        walk = self._walk
        for reason in (*self._run.reasons, *walk.refusals()):
            raise NotCompilableError(reason)
        if sum(size for owner, size in walk.arrays if not walk.is_new(owner)) > _LARGEST:
            raise NotCompilableError("it depends on large NumPy arrays, which may change: pass them as arguments")
        if not all(same(parts_of(one), before) for one, before in self._passed):
            raise NotCompilableError("it changes what an argument contains")
        changes = sorted(walk.changes(), key=lambda change: change[2])
        for label, name, of_library in changes:
            where = "" if of_library or not name else line_storing(walk.codes.values(), name)
            raise NotSettledError(f"it changes {label}{where}", is_users=not of_library)

    def _check_gaps(self, trace: Trace) -> None:
        """Raise if a leaf was computed by ops that were not recorded."""
        producers = trace.program.producers
        given = set(map(identity_of, self._arguments.tensors))
        for identity, var in trace.tensors.items():
            if producers[var] == LEAF and identity not in given and self._observer.missed(identity):
                raise NotCompilableError("part of it is computed by ops that are not recorded")


_EXPORTS = frozenset(("bytearray", "bytes", "memoryview"))
_LARGEST = 4 << 20  # bytes of arrays that are compared before each call
