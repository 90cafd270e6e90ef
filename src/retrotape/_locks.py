"""Locks that do not stay locked in a forked process: the thread that held one there is not there to release it."""

from __future__ import annotations

import os
from itertools import count
from threading import RLock, get_ident
from typing import Any
from weakref import ref

# Not a `WeakSet`: its callbacks are Python code, which would run, and could be interrupted, wherever a lock ends.
_all: dict[int, ref[Any]] = {}
_numbers = count()
_many = 16


def new_lock() -> RLock:
    """Return a reentrant lock: garbage collection, or an exception, may run code of ours anywhere."""
    lock = RLock()
    _remember(lock)
    return lock


def _remember(one: Any) -> None:
    global _many
    _all[next(_numbers)] = ref(one)
    if len(_all) > _many:
        for number, found in _all.copy().items():
            if found() is None:
                _all.pop(number, None)
        _many = len(_all) + max(16, len(_all) // 2)


class Turn:
    """What one block at a time may have, of all threads; the thread that has it does not get it twice.

    Attributes:
      holder: What the block has given that has it. To set it to None ends the block; in a `finally` clause no interrupt
        comes before that, while it may come at the beginning of any function.

    >>> turn = Turn()
    >>> turn.take("first"), turn.take("second")
    (True, False)
    >>> turn.holder = None
    >>> turn.take("second")
    True
    """

    def __init__(self) -> None:
        self.holder: object = None
        self._lock = new_lock()
        self._thread = 0
        _remember(self)

    def take(self, holder: object) -> bool:
        """Return whether no block had it; if so, no other one gets it until this one ends."""
        with self._lock:
            if self.holder is not None:
                return False
            self._thread = get_ident()
            self.holder = holder
            return True

    def after_fork(self) -> None:
        """Take it from a thread that is not in this process."""
        if self._thread != get_ident():
            self.holder = None


def _after_fork() -> None:
    found = [one() for one in _all.copy().values()]
    for lock in [one for one in found if one is not None and not isinstance(one, Turn)]:
        if lock.acquire(blocking=False):  # free, or held by the thread that forked, which goes on
            lock.release()
        else:
            lock._at_fork_reinit()  # as the locks of Python itself
    for turn in [one for one in found if isinstance(one, Turn)]:
        turn.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
