"""Which recordings are open on a thread, and which of them hear what runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from retrotape.record._recording import Recording
from retrotape.tf import hooks
from retrotape.tf.hook_table import lock
from retrotape.tf.scopes import Scope, again


class Openings(ABC):
    """The recordings that are open on one thread.

    An exception may come anywhere. So what is open is one list, and everything that is begun here can be taken back
    by `pop`, whichever part of it was done.
    """

    def __init__(self) -> None:
        self._ended = False
        self._open: list[Recording] = []
        self._active: list[Recording] = []  # those that hear what runs now
        self._careful = False  # whether one of them would drop what a stock tape may know
        self._known: set[int] = set()  # handles whose present value the active recordings can tell
        self._seen: dict[int, int] = {}  # by handle: how many of its writes are recorded, or were noticed

    @abstractmethod
    def flush(self) -> None:
        """Hand what has run since the last time to the recordings that were to hear it."""

    @abstractmethod
    def is_current(self) -> bool:
        """Say whether this is the thread that runs now."""

    @abstractmethod
    def _reset(self) -> None:
        """Forget what blocks that were interrupted have left behind: nothing is open."""

    def _hear(self, recordings: list[Recording]) -> None:
        self._active = recordings
        self._careful = any(recording.drops for recording in recordings)

    def is_idle(self) -> bool:
        """Say whether nothing is open."""
        return not self._open

    def has_open(self, recording: Recording) -> bool:
        """Say whether a recording is open here, paused or not."""
        return recording in self._open

    def push(self, recording: Recording) -> None:
        """Let `recording` take part until `pop`, which also takes back what was interrupted here."""
        if self._open:
            self.flush()
        else:
            self._reset()
        self._known.clear()
        with lock:
            self._open.append(recording)
            self._hear([*self._active, recording])
        if not self._is_attached():
            self._seen.clear()  # counted anew each time that hooks are installed
            hooks.attach(self._listener())

    def _is_attached(self) -> bool:
        return hooks.is_attached(self._listener())

    def pop(self, recording: Recording, here: bool | None = None) -> None:
        """End what `push` began; blocks may be left in any order, on any thread, and be left again.

        Args:
          recording: What is not to hear more.
          here: Whether this is the thread that is meant; None to find out.
        """
        here = self.is_current() if here is None else here
        try:
            self.flush()
        finally:
            again(lambda: self._take_out(recording, here))

    def _take_out(self, recording: Recording, here: bool) -> None:
        with lock:
            self._hear([other for other in self._active if other is not recording])
            self._open = [other for other in self._open if other is not recording]
        self._known.clear()
        if not self._open:
            hooks.detach(self._listener(), here)

    def end(self) -> None:
        """Close everything: the thread is ending."""
        self._ended = True
        for recording in list(self._open):
            self.pop(recording, here=False)

    def hear_again(self, recording: Recording) -> None:
        """Let an open recording hear what runs, which was damaged and has been cleared."""
        with lock:
            if recording in self._open and recording not in self._active:
                self._hear([*self._active, recording])

    def forget(self) -> None:
        """Take no variable's value for known: a recording has forgotten what it had, or a read has failed."""
        self._known.clear()

    def hears(self, recording: Recording) -> bool:
        """Say whether ops are being written to `recording` now."""
        return any(other is recording for other in self._active)

    def hearing(self) -> bool:
        """Say whether anything is being written down now."""
        return bool(self._active)

    def without(self, recording: Recording) -> Scope:
        """Run ops that `recording` does not write down."""
        return _HeardBy(self, [other for other in self._active if other is not recording])

    def unheard(self) -> Scope:
        """Run ops that nobody writes down."""
        return _HeardBy(self, [])

    def also(self, recording: Recording) -> Scope:
        """Run ops that `recording` writes down too, whether it is open or not."""
        if self.hears(recording):
            return Scope()
        return _HeardBy(self, [*self._active, recording]) if self._open else _Opened(self, recording)

    def only(self, recording: Recording) -> Scope:
        """Run ops that `recording` alone writes down, whether it is open or not."""
        return _HeardBy(self, [recording]) if self._open else _Opened(self, recording)

    @abstractmethod
    def _listener(self) -> Any:
        """Return who is told of what runs."""


class _Opened(Scope):
    """Let a recording be open."""

    def __init__(self, openings: Openings, recording: Recording) -> None:
        self._openings, self._recording = openings, recording

    def enter(self) -> None:
        self._openings.push(self._recording)

    def leave(self) -> None:
        self._openings.pop(self._recording)


class _HeardBy(Scope):
    """Let other recordings hear what runs."""

    def __init__(self, openings: Openings, recordings: list[Recording]) -> None:
        self._openings, self._recordings = openings, recordings
        self._before, self._open = openings._active, openings._open

    def enter(self) -> None:
        openings = self._openings
        openings.flush()
        with lock:
            self._before, self._open = openings._active, list(openings._open)
            openings._hear(self._recordings)
        openings._known.clear()

    def leave(self) -> None:
        openings = self._openings
        try:
            openings.flush()
        finally:
            with lock:
                openings._hear(self._after())
            openings._known.clear()

    def _after(self) -> list[Recording]:
        """Return who heard before, without those that were closed meanwhile and with those that were opened."""
        now, openings = self._openings._active, self._openings._open
        kept = [one for one in self._before if one in openings or one not in self._open]
        return kept + [one for one in now if one in openings and one not in self._open and one not in kept]
