"""Context managers that always exit, even if an exception occurs before the first line of `__exit__`.

Python runs signal handlers between any two instructions, so KeyboardInterrupt may occur when a `with` statement has
just called `__exit__` and none of it has run. All that still happens then is that the statement drops its references.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import ref

_Function = TypeVar("_Function", bound=Callable[..., Any])


def entered_as_is(enter: _Function) -> _Function:
    """Exclude `__enter__` from conversion by AutoGraph, with no wrapper around it in which an interrupt could come."""
    enter.autograph_info__ = None  # type: ignore[attr-defined]
    return enter


class _Spent:
    """A disarmed guard. It has no `__del__`, which would swallow exceptions such as KeyboardInterrupt."""

    __slots__ = ("__weakref__", "close", "mark")


class Guard(_Spent):
    """Calls `close` with its mark if it is garbage-collected before it is disarmed."""

    __slots__ = ()

    def __init__(self, close: Callable[[ref[Guard]], None]) -> None:
        self.close = close
        self.mark = ref(self)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        mark = getattr(self, "mark", None)
        if mark is not None and not is_finalizing():
            self.close(mark)


def spend(guard: Guard | None) -> None:
    """Disarm a guard."""
    if guard is not None:
        guard.__class__ = _Spent  # type: ignore[assignment]


def make_exit(
    leave: Callable[..., None], owner: Any, close: Callable[[ref[Guard]], None]
) -> tuple[Callable[..., None], ref[Guard]]:
    """Return the exit function for a `with` statement, and the mark of the guard in it.

    Only the statement references it. It is not a Python method: its frame would reference it too, and a traceback
    would keep that frame alive as long as the exception.
    """
    guarded: Any = partial(leave, owner)
    guarded.guard = guard = Guard(close)
    return guarded, guard.mark


class _ExitOf:
    """Descriptor of `__exit__`: a new guarded function per instance; on the class a plain one, for `ExitStack`."""

    def __get__(self, scope: Scope | None, owner: type) -> Callable[..., None]:
        if scope is None:
            return _leave
        found, scope._mark = make_exit(_leave, scope, scope._abandon)
        return found


class Scope:
    """A context manager for one block, whose `enter` may be interrupted and whose `leave` may be run again."""

    _inside = False
    _mark: ref[Guard] | None = None

    def enter(self) -> None:
        """Begin the block."""

    def leave(self) -> None:
        """End the block, even if `enter` was interrupted; rerun if an exception interrupts it."""

    def _abandon(self, _: ref[Guard]) -> None:
        _leave(self)

    @entered_as_is
    def __enter__(self) -> None:
        self._inside = True
        try:
            self.enter()
        except BaseException:
            _leave(self)
            raise

    __exit__ = _ExitOf()


def _leave(scope: Scope, *_: Any) -> None:
    if scope._inside:
        again(scope.leave)
        scope._inside = False
    if scope._mark is not None:
        spend(scope._mark())


def again(step: Callable[[], None]) -> None:
    """Run an idempotent step; if an exception interrupts it, run it again and reraise."""
    try:
        step()
    except BaseException:
        step()
        raise


class setting(Scope):
    """Set attributes of an object for one block.

    >>> from types import SimpleNamespace
    >>> lamp = SimpleNamespace(lit=False)
    >>> with setting(lamp, lit=True):
    ...     print(lamp.lit)
    True
    >>> lamp.lit
    False
    """

    def __init__(self, owner: Any, **values: Any) -> None:
        self._owner, self._values = owner, values
        self._before = {name: getattr(owner, name) for name in values}

    def enter(self) -> None:
        """Begin the block."""
        for name, value in self._values.items():
            setattr(self._owner, name, value)

    def leave(self) -> None:
        """End the block."""
        for name, value in self._before.items():
            setattr(self._owner, name, value)
