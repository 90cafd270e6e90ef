"""Which recordings are open on a thread, and which of them hear what runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retrotape import _hooks
from retrotape.record._recording import Recording


class Openings(ABC):
    """The recordings that are open on one thread."""

    def __init__(self) -> None:
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

    def _hear(self, recordings: list[Recording]) -> None:
        self._active = recordings
        self._careful = any(recording.drops for recording in recordings)

    def push(self, recording: Recording) -> None:
        """Let `recording` take part until `pop`."""
        self.flush()
        self._known.clear()
        self._open.append(recording)
        self._hear([*self._active, recording])
        if len(self._open) == 1:
            self._seen.clear()  # counted anew each time that hooks are installed
            _hooks.attach(self._listener())

    def pop(self, recording: Recording) -> None:
        """End what `push` began; blocks may be left in any order."""
        try:
            self.flush()
        finally:
            self._open = [other for other in self._open if other is not recording]
            self._hear([other for other in self._active if other is not recording])
            self._known.clear()
            if not self._open and self.is_current():
                _hooks.detach(self._listener())
            # On another thread that cannot be done: the owner does it when it runs its next op.

    def forget(self) -> None:
        """Take no variable's value for known: a recording has forgotten what it had."""
        self._known.clear()

    def hears(self, recording: Recording) -> bool:
        """Say whether ops are being written to `recording` now."""
        return any(other is recording for other in self._active)

    def hearing(self) -> bool:
        """Say whether anything is being written down now."""
        return bool(self._active)

    @contextmanager
    def without(self, recording: Recording) -> Iterator[None]:
        """Run ops that `recording` does not write down."""
        with self._heard_by([other for other in self._active if other is not recording]):
            yield

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """Run ops that nobody writes down."""
        with self._heard_by([]):
            yield

    @contextmanager
    def also(self, recording: Recording) -> Iterator[None]:
        """Run ops that `recording` writes down too, whether it is open or not."""
        if self.hears(recording):
            yield
        elif self._open:
            with self._heard_by([*self._active, recording]):
                yield
        else:
            with self.only(recording):
                yield

    @contextmanager
    def only(self, recording: Recording) -> Iterator[None]:
        """Run ops that `recording` alone writes down, whether it is open or not."""
        if self._open:
            with self._heard_by([recording]):
                yield
            return
        self.push(recording)
        try:
            yield
        finally:
            self.pop(recording)

    @contextmanager
    def _heard_by(self, recordings: list[Recording]) -> Iterator[None]:
        self.flush()
        before = self._active
        self._hear(recordings)
        self._known.clear()
        try:
            yield
        finally:
            try:
                self.flush()
            finally:
                self._hear(before)
                self._known.clear()

    @abstractmethod
    def _listener(self) -> Any:
        """Return who is told of what runs."""
