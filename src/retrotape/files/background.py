"""Saving in the background: one thread, which saves one tape after the other, in the order of the calls."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from weakref import WeakSet, finalize

from retrotape._locks import new_lock
from retrotape.errors import BackgroundSaveWarning, TapeWriteError
from retrotape.files.remote import without_secrets

_lock = new_lock()
pending: dict[str, Future[int]] = {}  # by key of the target: the latest save there that is not done
_unfinished: WeakSet[BackgroundSave] = WeakSet()  # all saves that are not done
_worker: ThreadPoolExecutor | None = None


class _Failure:
    """The error of a save, until somebody asks for it."""

    __slots__ = ("text", "where")

    def __init__(self, where: str) -> None:
        self.where, self.text = where, ""

    def warn(self) -> None:
        """Warn of an error that nobody has asked for."""
        if self.text:
            warnings.warn(BackgroundSaveWarning(self.where, self.text), stacklevel=2)


class BackgroundSave(Future[int]):
    """A save that is under way. An error that nobody asks for becomes a warning when this object is dropped."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._failure = _Failure(without_secrets(where))
        finalize(self, self._failure.warn)  # also at exit

    def result(self, timeout: float | None = None) -> int:
        """Return the size of the file, or raise what the save raised."""
        try:
            return super().result(timeout)
        finally:
            self._seen()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the save raised, or None."""
        try:
            return super().exception(timeout)
        finally:
            self._seen()

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error of the save."""
        self._failure.text = f"{type(exception).__name__}: {exception}"
        super().set_exception(exception)

    def leave_to_parent(self) -> None:
        """Raise for the result, in a forked process: it is not known here."""
        super().__init__()  # the thread that has saved may have held the lock, and is not there to release it
        problem = "it was being saved in the background when this process was forked, and the parent process saves it"
        remedy = "Ask for the result there, or before the fork: `tape.save(path, wait=False).result()`."
        super().set_exception(TapeWriteError(self._failure.where, problem, remedy))  # no failure to warn of

    def _seen(self) -> None:
        if self.done():  # else it was a timeout
            self._failure.text = ""


def submit(key: str, save: Callable[[], int]) -> Future[int]:
    """Save in the background, after what was submitted before.

    Args:
      key: Identifies the file.
      save: Writes it and returns its size.
    """
    future = BackgroundSave(key)
    with _lock:
        pending[key] = future
        _unfinished.add(future)
    try:
        _start().submit(_run, future, key, save)
    except RuntimeError:  # Python is exiting, and starts no threads any more
        _run(future, key, save)
    return future


def finish(key: Callable[[], str]) -> None:
    """Wait until nothing in the background saves to a file. Its errors are left for whoever holds the future.

    Args:
      key: Returns what identifies the file; called only if anything is being saved.
    """
    future = pending.get(key()) if pending else None
    if future is not None:
        wait([future])


def finish_all() -> None:
    """Wait until nothing is being saved in the background. Errors are left for whoever holds the futures."""
    with _lock:
        futures = list(pending.values())
    wait(futures)


def _start() -> ThreadPoolExecutor:
    """Return the thread; at exit, Python waits until it has finished everything."""
    global _worker
    with _lock:
        if _worker is None:
            _worker = ThreadPoolExecutor(1, thread_name_prefix="retrotape-save")
        return _worker


def _run(future: BackgroundSave, key: str, save: Callable[[], int]) -> None:
    try:
        if future.set_running_or_notify_cancel():
            try:
                size = save()
            except BaseException as error:
                _forget(key, future)
                future.set_exception(error)
            else:
                _forget(key, future)
                future.set_result(size)
        else:
            _forget(key, future)
    finally:
        with _lock:
            _unfinished.discard(future)  # only now: in a process forked before, it must not wait for ever
        del future, save  # the traceback of an error holds this frame


def _forget(key: str, future: Future[int]) -> None:
    with _lock:
        if pending.get(key) is future:
            del pending[key]


def _after_fork() -> None:
    """Start anew in a forked process: the thread is not there, and what it had to do is done in the parent."""
    global _worker
    _worker = None
    pending.clear()
    for future in list(_unfinished):
        future.leave_to_parent()
    _unfinished.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
