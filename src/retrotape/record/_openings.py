"""Which recorders are open on a thread, and which of them record what runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from retrotape.record._recorder import Recorder
from retrotape.record._trace import Trace
from retrotape.tf import hooks
from retrotape.tf.hook_table import lock
from retrotape.tf.scopes import Scope, again


class Openings(ABC):
    """The recorders that are open on one thread.

    An exception may come anywhere. So what is open is one list, and everything that is begun here can be taken back
    by `pop`, whichever part of it was done.
    """

    def __init__(self) -> None:
        self._ended = False
        self._open: list[Recorder] = []
        self.active: list[Recorder] = []  # those that record what runs now
        self._drops_values = False  # whether one of them would drop what a stock tape may know
        self._known: set[int] = set()  # handles whose present value the active recorders can tell
        self._seen: dict[int, int] = {}  # by handle: how many of its writes are recorded, or were noticed

    @abstractmethod
    def dispatch(self) -> None:
        """Hand what has run since the last time to the recorders that were to record it."""

    @abstractmethod
    def is_current(self) -> bool:
        """Return whether this is the thread that runs now."""

    @abstractmethod
    def _reset(self) -> None:
        """Forget what blocks that were interrupted have left behind: nothing is open."""

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
        """Let `recorder` record until `pop`, which also takes back what was interrupted here."""
        if self._open:
            self.dispatch()
        else:
            self._reset()
        self._known.clear()
        with lock:
            self._open.append(recorder)
            self._activate([*self.active, recorder])
        if not self._is_attached():
            self._seen.clear()  # counted anew each time that hooks are installed
            hooks.attach(self._listener())

    def _is_attached(self) -> bool:
        return hooks.is_attached(self._listener())

    def pop(self, recorder: Recorder, here: bool | None = None) -> None:
        """End what `push` began; blocks may be left in any order, on any thread, and be left again.

        Args:
          recorder: What is not to hear more.
          here: Whether this is the thread that is meant; None to find out.
        """
        here = self.is_current() if here is None else here
        try:
            self.dispatch()
        finally:
            again(lambda: self._take_out(recorder, here))

    def _take_out(self, recorder: Recorder, here: bool) -> None:
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
        """Let an open recorder hear what runs, which was damaged and has been cleared."""
        with lock:
            if recorder in self._open and recorder not in self.active:
                self._activate([*self.active, recorder])

    def forget(self) -> None:
        """Take no variable's value for known: a recorder has forgotten what it had, or a read has failed."""
        self._known.clear()

    def records(self, trace: Trace) -> bool:
        """Return whether ops are being recorded on `trace` now."""
        return any(other is trace for other in self.active)

    def recording(self) -> bool:
        """Return whether anything is being recorded now."""
        return bool(self.active)

    def without(self, trace: Trace) -> Scope:
        """Run ops that are not recorded on `trace`."""
        return _RecordedBy(self, [other for other in self.active if other is not trace])

    def unrecorded(self) -> Scope:
        """Run ops that are not recorded."""
        return _RecordedBy(self, [])

    def also(self, trace: Trace) -> Scope:
        """Run ops that are recorded on `trace` too, whether it is open or not."""
        if self.records(trace):
            return Scope()
        recorder = _recorder_of(trace)
        return _RecordedBy(self, [*self.active, recorder]) if self._open else _Opened(self, recorder)

    def only(self, trace: Trace) -> Scope:
        """Run ops that are recorded on `trace` alone, whether it is open or not."""
        recorder = _recorder_of(trace)
        return _RecordedBy(self, [recorder]) if self._open else _Opened(self, recorder)

    @abstractmethod
    def _listener(self) -> Any:
        """Return who is told of what runs."""


def _recorder_of(trace: Trace) -> Recorder:
    assert isinstance(trace, Recorder)
    return trace


class _Opened(Scope):
    """Let a recorder be open."""

    def __init__(self, openings: Openings, recorder: Recorder) -> None:
        self._openings, self._recorder = openings, recorder

    def enter(self) -> None:
        self._openings.push(self._recorder)

    def leave(self) -> None:
        self._openings.pop(self._recorder)


class _RecordedBy(Scope):
    """Let other recorders hear what runs."""

    def __init__(self, openings: Openings, recorders: list[Recorder]) -> None:
        self._openings, self._recorders = openings, recorders
        self._before, self._open = openings.active, openings._open

    def enter(self) -> None:
        openings = self._openings
        openings.dispatch()
        with lock:
            self._before, self._open = openings.active, list(openings._open)
            openings._activate(self._recorders)
        openings._known.clear()

    def leave(self) -> None:
        openings = self._openings
        try:
            openings.dispatch()
        finally:
            with lock:
                openings._activate(self._after())
            openings._known.clear()

    def _after(self) -> list[Recorder]:
        """Return who heard before, without those that were closed meanwhile and with those that were opened."""
        now, openings = self._openings.active, self._openings._open
        kept = [one for one in self._before if one in openings or one not in self._open]
        return kept + [one for one in now if one in openings and one not in self._open and one not in kept]
