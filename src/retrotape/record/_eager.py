"""What a tape has written down in eager code, and when it was listening."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from retrotape.record._cells import Cell
from retrotape.record._recording import Recording
from retrotape.record._rollback import mark, rollback
from retrotape.record._stack import Stack, current_stack, next_stamp
from retrotape.tf import core, hooks
from retrotape.tf.replicas import handle_of, handles_of
from retrotape.tf.scopes import Scope, again

Tensor = Any


def cells_in(recording: Recording, variable: Any) -> list[Cell]:
    """Return what a recording knows of a variable on each device."""
    found = [recording.cells.get(handle._id) for handle in handles_of(variable)]
    return [cell for cell in found if cell is not None]


class EagerLog:
    """A recording, filled while it is started."""

    graph = None
    operations = None
    outer = None

    def __init__(self, keep: str, directory: str | None = None) -> None:
        self.recording = Recording(keep, directory=directory)
        self._stack: Stack | None = None
        self._spans: dict[int, int] = {}  # when it was open: from and to, on the clock of identities
        self._pauses: list[tuple[int, int]] = []
        self._paused_since: list[int] = []
        self._since = 0
        self._watched: set[int] = set()  # by identity of the handle
        self._stand_ins: dict[int, int] = {}  # by identity of the handle

    @classmethod
    def of(cls, logs: Sequence[EagerLog], recording: Recording) -> EagerLog:
        """Return a log that holds what others have written down."""
        log = cls(recording.keep)
        log.recording = recording
        log._spans = dict(sorted(span for other in logs for span in other._all_spans()))
        log._pauses = [pause for other in logs for pause in other._pauses]
        recording.silences = [silence for other in logs for silence in other.recording.silences]
        return log

    def _all_spans(self) -> list[tuple[int, int]]:
        return [*self._spans.items(), *([(self._since, core.next_id())] if self.is_open else [])]

    @property
    def token(self) -> object:
        """What changes when everything is forgotten."""
        return self.recording.token

    @property
    def is_elsewhere(self) -> bool:
        """Whether the block is open on another thread."""
        return self.is_open and self._stack is not current_stack()

    @property
    def is_open(self) -> bool:
        """Whether the block is open, paused or not."""
        if self._stack is not None and not self._stack.has_open(self.recording):
            self.close()  # its thread has ended
        return self._stack is not None

    def is_heard(self) -> bool:
        """Say whether ops on this thread are being written down now."""
        return current_stack().hears(self.recording)

    def start(self) -> None:
        """Write down what runs on this thread from now on."""
        stack = current_stack()
        if not self._spans:
            self.recording.began = hooks.now()
        self.recording.mark_stale()
        self._since = core.next_id()
        if self._spans:
            self.recording.silences.append((max(self._spans.values()), self._since))
        try:
            stack.push(self.recording)
            self._stack = stack  # only now: to other threads it is open or it is not
            stack.note_layers(self.recording)
        except BaseException:
            again(lambda: stack.pop(self.recording))
            raise

    def stop(self) -> None:
        """Stop writing."""
        stack = self._stack
        try:
            if stack is not None and stack is current_stack():
                stack.hold_copied(self.recording)
                stack.look_at_assigned(self.recording)
        finally:
            again(self.close)

    def close(self) -> None:
        """Stop writing, as it is; on any thread, and once more where that was interrupted."""
        stack = self._stack
        if stack is not None:
            stack.pop(self.recording)
            self.recording.end_scopes(next_stamp())
            self._spans[self._since] = core.next_id()
            self._stack = None

    def paused(self) -> AbstractContextManager[None]:
        """Write nothing down meanwhile."""
        return _Paused(self)

    def extended(self) -> AbstractContextManager[None]:
        """Write down what runs meanwhile, whether started or not, and let nobody else hear it."""
        return current_stack().only(self.recording)

    def extended_in_graph(self) -> AbstractContextManager[None]:
        """Do nothing: in eager code answers are written down only when somebody asks about them."""
        return nullcontext()

    def provisional(self) -> AbstractContextManager[None]:
        """Write down what runs meanwhile, and forget it afterwards unless it would have been written down anyway."""
        return nullcontext() if self.is_heard() else _Provisional(self)

    def refresh(self) -> None:
        """Bring the recording up to date, or raise if it was interrupted and some of it may be missing."""
        self._flush()
        self.recording.settle()
        self.recording.demand_whole()

    def _flush(self) -> None:
        current_stack().flush()
        if self._stack is not None:
            self._stack.flush()

    def take_part(self, tensor: Tensor) -> int:
        """Let a tensor be known although no op has used it, and return its var."""
        self.refresh()
        return self.recording.operand(tensor)

    def watch(self, variable: Any) -> None:
        """Let a variable be a target although no op may use it."""
        self._watched.add(handle_of(variable)._id)

    def watches(self, variable: Any) -> bool:
        """Say whether `watch` was told of a variable."""
        return handle_of(variable)._id in self._watched

    def stand_in(self, variable: Any) -> int:
        """Return a var for a variable that no op has used: nothing depends on it, and its value is not known."""
        handle = handle_of(variable)
        identity = handle._id
        if identity not in self._stand_ins:
            self._stand_ins[identity] = self.recording.stand_in(handle)
        return self._stand_ins[identity]

    def variables(self) -> list[Any]:
        """Return the variables that were read."""
        return list(self.recording.variables.values())

    def trainable(self) -> list[Any]:
        """Return those of them that are trainable now; where Keras has them, its variables, and what it says."""
        return self.recording.trainable(self.variables())

    def clear(self) -> None:
        """Forget everything that was written down."""
        self.recording.damaged = True  # until everything is forgotten
        self._flush()
        self._spans.clear()
        self._pauses.clear()
        self._watched.clear()
        self._stand_ins.clear()
        if self._stack is not None:
            self._stack.forget()
        self.recording.clear()
        if self._stack is not None and not self._paused_since:
            self._stack.hear_again(self.recording)

    def find(self, tensor: Tensor) -> int | None:
        """Return the var of a tensor."""
        return self.recording.find(tensor)

    def cell(self, variable: Any) -> Cell | None:
        """Return what is known of a variable; where it consists of one for each device, of the first that was used."""
        return next(iter(self.cells_of(variable)), None)

    def cells_of(self, variable: Any) -> list[Cell]:
        """Return what is known of a variable on each device; of most variables there is one."""
        return cells_in(self.recording, variable)

    def why_absent(self, tensor: Tensor) -> tuple[str, str] | None:
        """Say why a tensor has no var and what to do about it; None if it was made in the block, but by no op."""
        if not isinstance(tensor, core.EagerTensor):
            return (
                "it is symbolic, made inside a tf.function, and the tape was recorded outside",
                "Return it from the function, or open the tape inside the function.",
            )
        made = tensor._id
        pauses = [*self._pauses, *((begin, sys.maxsize) for begin in self._paused_since)]
        if any(begin < made < end for begin, end in pauses):
            return (
                "it was made while recording was paused",
                "Move the code that makes it out of `tape.stop_recording()`.",
            )
        spans = [*self._spans.items(), *([(self._since, sys.maxsize)] if self.is_open else [])]
        if not spans:
            return "the tape was reset since", "Record again: `with tape: ...`, then ask."
        if made < spans[0][0]:
            return (
                "it was made before recording began and took no part in it",
                "Move the code that makes it into the `with` block.",
            )
        if not any(begin < made < end for begin, end in spans):
            return (
                "it was made after recording ended",
                "Move the code that makes it into the `with` block, or enter the block again: `with tape: ...`.",
            )
        return None


class _Paused(Scope):
    """Let a log that is open write nothing down."""

    def __init__(self, log: EagerLog) -> None:
        assert log._stack is not None
        self._log, self._stack, self._begin = log, log._stack, 0
        self._unheard = self._stack.without(log.recording)

    def enter(self) -> None:
        self._stack.look_at_assigned(self._log.recording)
        self._begin = core.next_id()
        self._log._paused_since.append(self._begin)
        self._unheard.enter()

    def leave(self) -> None:
        log, begin = self._log, self._begin
        self._unheard.leave()
        if begin in log._paused_since:
            pause = begin, core.next_id()
            log._pauses.append(pause)
            log.recording.silences.append(pause)
            log._paused_since.remove(begin)


class _Provisional(Scope):
    """Write down what runs, and take it back: also the half of it, where an exception comes."""

    def __init__(self, log: EagerLog) -> None:
        self._log, self._recording = log, log.recording
        self._from: tuple[int, int, int] | None = None
        self._heard: Scope | None = None

    def enter(self) -> None:
        self._log.refresh()
        self._from = mark(self._recording)
        self._heard = current_stack().also(self._recording)
        self._heard.enter()

    def leave(self) -> None:
        recording = self._recording
        if self._heard is not None:
            self._heard.leave()
        if self._from is not None:
            recording.settle()
            recording.damaged = True  # until all of it is taken back
            rollback(recording, self._from)
            recording.damaged = False
            self._from = None
