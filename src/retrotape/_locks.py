"""Locks that do not stay locked in a forked process: the thread that held one there is not there to release it."""

from __future__ import annotations

import os
from threading import Lock, RLock
from weakref import ref

_FEW = 1024  # references, before those to locks that are gone are removed
_all: list[ref[RLock]] = []  # without a callback, which would be Python code that an interrupt gets lost in
_limit = _FEW
_pruning = Lock()


def new_lock() -> RLock:
    """Return a reentrant lock: garbage collection, or an exception, may run code of ours anywhere."""
    lock = RLock()
    _all.append(ref(lock))
    if len(_all) > _limit and _pruning.acquire(blocking=False):
        _prune()
    return lock


def _prune() -> None:
    global _limit
    try:
        count = len(_all)  # other threads append meanwhile
        _all[:count] = [one for one in _all[:count] if one() is not None]
        _limit = max(_FEW, 2 * len(_all))
    finally:
        _pruning.release()


def _after_fork() -> None:
    global _pruning
    _pruning = Lock()
    for lock in [found for found in (one() for one in list(_all)) if found is not None]:
        if lock.acquire(blocking=False):  # free, or held by the thread that forked, which goes on
            lock.release()
        else:
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the locks of Python itself


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
