"""Recording in eager code: when a tape is open, paused or closed, and what it has recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from retrotape._types import Tensor, Variable
from retrotape.errors import InterruptedTapeError
from retrotape.ir import VariableHistory
from retrotape.record._frames import here
from retrotape.record._recorder import Recorder
from retrotape.record._stack import Stack, current_stack, next_time, thread
from retrotape.record._trace import Trace
from retrotape.tf import core, hooks
from retrotape.tf.core import identity_of
from retrotape.tf.replicas import handle_of, handles_of
from retrotape.tf.scopes import Scope, again

_OUTSIDE = 2  # frames from `here` to the caller of `start`


def histories_in(trace: Trace, variable: Variable) -> list[VariableHistory]:
    """Return the histories of a variable, one per device it was used on; one if its parts were merged."""
    return _histories_in(trace, variable, trace.facts.histories)


def _histories_in(trace: Trace, variable: Variable, histories: Mapping[int, VariableHistory]) -> list[VariableHistory]:
    handles = handles_of(variable) if isinstance(variable, core.DistributedVariable) else [variable.handle]
    keys = [identity_of(handle) for handle in handles]
    found = [histories[key] for key in keys if key in histories]
    if not found:
        found = [histories[trace.stand_ins[key]] for key in keys if trace.stand_ins.get(key) in histories]
    return found[:1] if len({id(history) for history in found}) == 1 else found


class EagerSession:
    """A trace, recorded while the session is open."""

    graph = None
    operations = None
    outer = None

    def __init__(self, keep: str = "needed", directory: str | None = None, trace: Trace | None = None) -> None:
        assert trace is None or isinstance(trace, Recorder)
        self.trace: Recorder = Recorder(keep, directory=directory) if trace is None else trace
        self._stack: Stack | None = None
        self._spans: dict[int, int] = {}  # when it was open: begin → end, on the clock of identities
        self._pauses: list[tuple[int, int]] = []
        self._paused_since: list[int] = []
        self._since = 0
        self._watched: set[int] = set()  # by identity of the handle
        self._watched_tensors: dict[int, Tensor] = {}  # by identity
        self._expected: Any = None  # what the stack expected before the block, see `Stack.expect`
        self._stand_ins: dict[int, int] = {}  # by identity of the handle

    @classmethod
    def of(cls, sessions: Sequence[EagerSession], trace: Trace) -> EagerSession:
        """Return a closed session for a trace made from those of `sessions`."""
        session = cls(trace=trace)
        session._spans = dict(sorted(span for other in sessions for span in other._all_spans()))
        session._pauses = [pause for other in sessions for pause in other._pauses]
        # A trace that equals a template has no such spans; its program need not be built to see that.
        built = [other.trace for other in sessions if other.trace.followed() is None]
        spans = [span for other in built for span in other.facts.unrecorded_spans]
        if spans:
            session.trace.facts.unrecorded_spans.extend(spans)
        return session

    def frozen(self) -> EagerSession:
        """Return a closed session of what has been recorded so far: what is recorded later is not part of it."""
        twin = type(self)(trace=self.trace.fork())
        twin._spans, twin._pauses = dict(self._all_spans()), [*self._pauses]
        return twin

    def _all_spans(self) -> list[tuple[int, int]]:
        return [*self._spans.items(), *([(self._since, core.next_id())] if self.is_open else [])]

    @property
    def token(self) -> object:
        """An object that is replaced when everything is forgotten."""
        return self.trace.token

    @property
    def is_elsewhere(self) -> bool:
        """Whether the block is open on another thread."""
        return self.is_open and self._stack is not current_stack()

    @property
    def is_open(self) -> bool:
        """Whether the block is open, paused or not."""
        if self._stack is not None and not self._stack.has_open(self.trace):
            self.close()  # its thread has ended
        return self._stack is not None

    def is_recording(self) -> bool:
        """Return whether ops on this thread are being recorded now."""
        trace = self.trace
        return any(other is trace for other in thread.stack.active)

    def remembers(self) -> tuple[bool, bool]:
        """Return whether results are remembered, and whether they are recorded as they are made.

        While paused, a result is a constant, like everything else computed then.
        """
        recording = self.is_recording()
        return recording or not self.is_open, recording

    def start(self, follow: bool = True) -> None:
        """Start recording on this thread; `follow` says whether an earlier run of the same block may be followed."""
        stack, site = current_stack(), None
        if not self._spans:
            self.trace.began = hooks.now()
            site = self.trace.follow_at(here(_OUTSIDE)) if follow else None
        else:
            self.trace.build()
            self.trace.mark_stale()
        self._since = core.next_id()
        if self._spans:
            self.trace.facts.unrecorded_spans.append((max(self._spans.values()), self._since))
        try:
            stack.push(self.trace)
            if site is not None:
                self._expected = stack.expect(site.spots)
            self._stack = stack  # last: other threads must not see it half open
            stack.add_layer_calls(self.trace)
        except BaseException:
            again(lambda: stack.pop(self.trace))
            raise

    def stop(self) -> None:
        """Stop recording."""
        stack = self._stack
        try:
            if stack is not None and stack is current_stack():
                stack.hold_copied(self.trace)
                stack.read_assigned(self.trace)
        finally:
            again(self.close)

    def close(self) -> None:
        """Stop recording without reading variables; on any thread, and again if it was interrupted."""
        stack = self._stack
        if stack is not None:
            stack.pop(self.trace)
            self.trace.end_layer_calls(next_time())
            self.trace.end_following()
            if self._expected is not None:
                stack.expect(*self._expected)
                self._expected = None
            self._spans[self._since] = core.next_id()
            self._stack = None

    def paused(self) -> AbstractContextManager[None]:
        """Record nothing in the block."""
        return _Paused(self)

    def extended(self) -> AbstractContextManager[None]:
        """Record ops in the block on this tape only, whether it is open or not."""
        return current_stack().only(self.trace)

    @contextmanager
    def forked(self) -> Iterator[EagerSession]:
        """Record ops in the block on a fork of the trace, unless recorded anyway; yield the session to query."""
        if self.is_recording():
            yield self
            return
        self.flush()
        fork = EagerSession(trace=self.trace.fork())
        fork._spans, fork._pauses, fork._watched = dict(self._all_spans()), [*self._pauses], {*self._watched}
        try:
            with current_stack().also(fork.trace):
                yield fork
        finally:  # no query comes later, and a backward function may hold the fork that holds it
            fork.trace.facts.backward_functions.clear()

    def flush(self) -> None:
        """Record all pending events; raise if recording was interrupted and events may be missing."""
        self._dispatch()
        if self.trace.waiting:
            self.trace.flush()
        if self.trace.damaged:
            raise InterruptedTapeError

    def _dispatch(self) -> None:
        for stack in (thread.stack, self._stack):
            if stack is not None and stack.events:
                stack.dispatch()

    def var_of(self, tensor: Tensor) -> int:
        """Return the var of a tensor; one that no op has used becomes a leaf."""
        self.flush()
        return self.trace.var_of(tensor)

    def watch(self, variable: Variable) -> None:
        """Allow a variable as a target even if no op uses it."""
        self._watched.add(identity_of(handle_of(variable)))

    def watch_tensor(self, tensor: Tensor) -> None:
        """Allow a tensor as a target even if no op uses it."""
        self._watched_tensors[identity_of(tensor)] = tensor

    def watches(self, variable: Variable) -> bool:
        """Return whether a variable was passed to `watch`."""
        return identity_of(handle_of(variable)) in self._watched

    def stand_in(self, variable: Variable) -> int:
        """Return a var for a variable that no op has used: nothing depends on it, and its value is unknown."""
        handle = handle_of(variable)
        identity = identity_of(handle)
        if identity not in self._stand_ins:
            self._stand_ins[identity] = self.trace.stand_in(handle)
        return self._stand_ins[identity]

    def variables(self) -> list[Variable]:
        """Return the variables that were read."""
        return list(self.trace.variables.values())

    def trainable(self) -> list[Variable]:
        """Return those that are trainable now; for a variable owned by Keras, the Keras variable."""
        return self.trace.trainable(self.variables())

    def clear(self) -> None:
        """Forget everything that was recorded."""
        self.trace.damaged = True  # until everything is forgotten
        self._dispatch()
        self._spans.clear()
        self._pauses.clear()
        self._watched.clear()
        self._watched_tensors.clear()
        self._stand_ins.clear()
        if self._stack is not None:
            self._stack.forget()
        self.trace.clear()
        if self._stack is not None and not self._paused_since:
            self._stack.resume(self.trace)

    def find(self, tensor: Tensor) -> int | None:
        """Return the var of a tensor."""
        tensors, identity = self.trace.tensors, identity_of(tensor)
        var = tensors.resolve(identity) if tensors.recomputed else tensors.by_identity.get(identity)
        return self.trace.var_of(tensor) if var is None and identity_of(tensor) in self._watched_tensors else var

    def history(self, variable: Variable) -> VariableHistory | None:
        """Return the history of a variable; if it has one per device, that of the first device that was used."""
        return next(iter(self.histories_of(variable)), None)

    def histories_of(self, variable: Variable) -> list[VariableHistory]:
        """Return the histories of a variable, one per device; most variables have one."""
        return histories_in(self.trace, variable)

    def source_histories(self, variable: Variable) -> list[VariableHistory]:
        """Return the same, only to look up versions: without handles, the program need not be built."""
        return _histories_in(self.trace, variable, self.trace.histories())

    def why_absent(self, tensor: Tensor) -> tuple[str, str] | None:
        """Return why a tensor has no var and what to do about it; None if it was made in the block, not by an op."""
        if not isinstance(tensor, core.EagerTensor):
            return (
                "it is symbolic, made inside a tf.function, and the tape was recorded outside",
                "Return it from the function, or open the tape inside the function.",
            )
        made = identity_of(tensor)
        pauses = [*self._pauses, *((begin, sys.maxsize) for begin in self._paused_since)]
        if any(begin < made < end for begin, end in pauses):
            return (
                "it was made while recording was paused",
                "Move the code that makes it out of `tape.stop_recording()`.",
            )
        spans = [*self._spans.items(), *([(self._since, sys.maxsize)] if self.is_open else [])]
        if not spans:
            return "the tape was reset since", "Record again: `with tape: ...`, then repeat the query."
        if made < spans[0][0]:
            return (
                "it was made before recording began and was not used in it",
                "Move the code that makes it into the `with` block.",
            )
        if not any(begin < made < end for begin, end in spans):
            return (
                "it was made after recording ended",
                "Move the code that makes it into the `with` block, or enter the block again: `with tape: ...`.",
            )
        return None


class LoadedSession(EagerSession):
    """A session of a trace that was recorded elsewhere."""

    def why_absent(self, tensor: Tensor) -> tuple[str, str] | None:
        """Return that no tensor of this process is on a loaded tape."""
        return "it was made in this process, and the tape was loaded", "Use a tensor of the tape: `tape['name']`."


class _Paused(Scope):
    """Pause an open session for one block."""

    def __init__(self, session: EagerSession) -> None:
        assert session._stack is not None
        self._session, self._stack, self._begin = session, session._stack, 0
        self._without = self._stack.without(session.trace)

    def enter(self) -> None:
        self._stack.read_assigned(self._session.trace)
        self._session.trace.build()
        self._begin = core.next_id()
        self._session._paused_since.append(self._begin)
        self._without.enter()

    def leave(self) -> None:
        session, begin = self._session, self._begin
        self._without.leave()
        if begin in session._paused_since:
            pause = begin, core.next_id()
            session._pauses.append(pause)
            session.trace.facts.unrecorded_spans.append(pause)
            session._paused_since.remove(begin)
