"""Which recorders are open on a thread, and which of them are active."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from retrotape.record._observer import Observer
from retrotape.record._recorder import Recorder
from retrotape.record._trace import Trace
from retrotape.tf import hooks
from retrotape.tf.hook_table import lock
from retrotape.tf.scopes import Scope, again


class Openings(ABC):
    """The recorders that are open on one thread.

    An exception, such as KeyboardInterrupt, may occur anywhere. So one list says what is open, and `pop` can undo
    any part of `push` that was done.
    """

    def __init__(self) -> None:
        self._ended = False
        self._open: list[Recorder] = []
        self.active: list[Recorder] = []  # those that record ops now
        self._drops_values = False  # whether one of them would drop values known to a stock tape
        self._known: set[int] = set()  # handles whose current value the active recorders know
        self._seen: dict[int, int] = {}  # by handle: time of its last write that was recorded or noticed

    @abstractmethod
    def dispatch(self) -> None:
        """Pass the ops that ran since the last dispatch to the active recorders."""

    @abstractmethod
    def is_current(self) -> bool:
        """Return whether this belongs to the current thread."""

    @abstractmethod
    def _reset(self) -> None:
        """Clear state left behind by interrupted blocks; called while nothing is open."""

    def _activate(self, recorders: list[Recorder]) -> None:
        self.active = recorders
        self._drops_values = any(recorder.drops_values for recorder in recorders)

    def is_idle(self) -> bool:
        """Return whether nothing is open."""
        return not self._open

    def has_open(self, recorder: Recorder) -> bool:
        """Return whether a recorder is open here, paused or not."""
        return recorder in self._open

    def push(self, recorder: Recorder) -> None:
        """Activate `recorder` until `pop`, which also undoes an interrupted `push`."""
        if self._open:
            self.dispatch()
        else:
            self._reset()
        self._known.clear()
        with lock:
            self._open.append(recorder)
            self._activate([*self.active, recorder])
        if not self._is_attached():
            self._seen.clear()  # write times restart when hooks are installed
            hooks.attach(self._listener())

    def _is_attached(self) -> bool:
        return hooks.is_attached(self._listener())

    def pop(self, recorder: Recorder, here: bool | None = None) -> None:
        """Undo `push`. Blocks may end in any order, on any thread, and more than once.

        Args:
          recorder: The recorder to close.
          here: Whether this belongs to the current thread; None to find out.
        """
        here = self.is_current() if here is None else here
        try:
            self.dispatch()
        finally:
            again(lambda: self._remove(recorder, here))

    def _remove(self, recorder: Recorder, here: bool) -> None:
        with lock:
            self._activate([other for other in self.active if other is not recorder])
            self._open = [other for other in self._open if other is not recorder]
        self._known.clear()
        if not self._open:
            hooks.detach(self._listener(), here)

    def end(self) -> None:
        """Close everything: the thread is ending."""
        self._ended = True
        for recorder in list(self._open):
            self.pop(recorder, here=False)

    def resume(self, recorder: Recorder) -> None:
        """Reactivate an open recorder that was damaged and has been cleared."""
        with lock:
            if recorder in self._open and recorder not in self.active:
                self._activate([*self.active, recorder])

    def forget(self) -> None:
        """Forget which variables' values are known: a recorder was cleared, or a read failed."""
        self._known.clear()

    def records(self, trace: Trace) -> bool:
        """Return whether ops are being recorded on `trace` now."""
        return any(other is trace for other in self.active)

    def recording(self) -> bool:
        """Return whether anything is being recorded now, to be differentiated later."""
        return any(recorder.observer is None or not recorder.observer.of_query for recorder in self.active)

    def observed(self) -> bool:
        """Return whether anything is notified of ops now, to differentiate them later or only to compile them."""
        return bool(self.active)

    def without(self, trace: Trace) -> Scope:
        """Do not record ops in the block on `trace`."""
        return _RecordedBy(self, [other for other in self.active if other is not trace])

    def unrecorded(self, identified: bool = False) -> Scope:
        """Do not record ops in the block.

        Args:
          identified: Whether every tensor made in the block that is used after it becomes known as one that is on
            record: then an observer misses nothing.
        """
        return _RecordedBy(self, [], identified)

    def also(self, trace: Trace) -> Scope:
        """Record ops in the block on `trace` as well, whether it is open or not."""
        if self.records(trace):
            return Scope()
        recorder = _recorder_of(trace)
        return _RecordedBy(self, [*self.active, recorder]) if self._open else _Opened(self, recorder)

    def only(self, trace: Trace) -> Scope:
        """Record ops in the block on `trace` only, whether it is open or not."""
        recorder = _recorder_of(trace)
        return _RecordedBy(self, [recorder]) if self._open else _Opened(self, recorder)

    def aside(self) -> Scope:
        """Do not record ops in the block; they access no variable, and nothing uses their results after it."""
        return _Aside(self)

    def beside(self, recorder: Recorder) -> Scope:
        """Record ops in the block on `recorder` as well, which only observes them."""
        return _RecordedBy(self, [*self.active, recorder], keeps_known=True)

    @abstractmethod
    def _listener(self) -> Any:
        """Return the object that the hooks notify."""


def _recorder_of(trace: Trace) -> Recorder:
    assert isinstance(trace, Recorder)
    return trace


class _Opened(Scope):
    """Open a recorder for one block."""

    def __init__(self, openings: Openings, recorder: Recorder) -> None:
        self._openings, self._recorder = openings, recorder

    def enter(self) -> None:
        self._openings.push(self._recorder)

    def leave(self) -> None:
        self._openings.pop(self._recorder)


class _RecordedBy(Scope):
    """Replace the active recorders for one block."""

    def __init__(
        self, openings: Openings, recorders: list[Recorder], identified: bool = False, keeps_known: bool = False
    ) -> None:
        self._openings, self._recorders, self._identified = openings, recorders, identified
        self._keeps_known = keeps_known
        self._before, self._open = openings.active, openings._open

    def enter(self) -> None:
        openings = self._openings
        openings.dispatch()
        for observer in self._not_notified():
            observer.on_gap()
        with lock:
            self._before, self._open = openings.active, list(openings._open)
            openings._activate(self._recorders)
        self._forget()

    def leave(self) -> None:
        openings = self._openings
        try:
            openings.dispatch()
        finally:
            with lock:
                openings._activate(self._after())
            self._forget()
            for observer in self._not_notified():
                observer.on_gap_end()

    def _not_notified(self) -> list[Observer]:
        """Return the observers that miss what runs in the block."""
        if self._identified:
            return []
        active = [recorder for recorder in self._openings.active if recorder not in self._recorders]
        return [recorder.observer for recorder in active if recorder.observer is not None]

    def _forget(self) -> None:
        """Forget which values the recorders know, as others are active now."""
        if not self._keeps_known:
            self._openings._known.clear()

    def _after(self) -> list[Recorder]:
        """Return the previously active recorders, minus those closed in the block, plus those opened."""
        now, openings = self._openings.active, self._openings._open
        kept = [one for one in self._before if one in openings or one not in self._open]
        return kept + [one for one in now if one in openings and one not in self._open and one not in kept]


class _Aside(_RecordedBy):
    """Record nothing in one block, after which everything is as before."""

    def __init__(self, openings: Openings) -> None:
        super().__init__(openings, [], identified=True)
        self._known: set[int] = set()

    def enter(self) -> None:
        self._known = set(self._openings._known)
        super().enter()

    def leave(self) -> None:
        super().leave()
        self._openings._known.update(self._known)
