"""Locks that do not stay locked in a forked process: the thread that held one there is not there to release it."""

from __future__ import annotations

import os
from threading import RLock
from weakref import WeakSet

_all: WeakSet[RLock] = WeakSet()


def new_lock() -> RLock:
    """Return a reentrant lock: garbage collection, or an exception, may run code of ours anywhere."""
    lock = RLock()
    _all.add(lock)
    return lock


def _after_fork() -> None:
    for lock in list(_all):
        if lock.acquire(blocking=False):  # free, or held by the thread that forked, which goes on
            lock.release()
        else:
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the locks of Python itself


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
