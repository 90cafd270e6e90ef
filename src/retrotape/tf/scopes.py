"""Blocks that are left in every case: also where an exception comes before the first line of `__exit__`.

Python runs signal handlers between any two instructions, so Ctrl-C may come when a `with` statement has just called
`__exit__` and nothing of it has run. The one thing that still happens then is that the statement drops what it holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref


class _Spent:
    """A guard that does nothing any more. It has no `__del__`: an exception in one is lost, and Ctrl-C must not be."""

    __slots__ = ("__weakref__", "close", "mark")


class Guard(_Spent):
    """Calls `close`, with its mark, when whoever holds it drops it before it is spent."""

    __slots__ = ()

    def __init__(self, close: Callable[[ref[Guard]], None]) -> None:
        self.close = close
        self.mark = ref(self)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        mark = getattr(self, "mark", None)
        if mark is not None and not is_finalizing():
            self.close(mark)


def spend(guard: Guard | None) -> None:
    """Let a guard do nothing any more."""
    if guard is not None:
        guard.__class__ = _Spent  # type: ignore[assignment]


def make_exit(
    leave: Callable[..., None], owner: Any, close: Callable[[ref[Guard]], None]
) -> tuple[Callable[..., None], ref[Guard]]:
    """Return what a `with` statement is to call at the end of its block, and the mark of the guard in it.

    Nobody but the statement holds it. It is not a method written in Python: the frame of one would hold it too, and
    the traceback the frame, for as long as anybody keeps the exception.
    """
    guarded: Any = partial(leave, owner)
    guarded.guard = guard = Guard(close)
    return guarded, guard.mark


class _ExitOf:
    """The `__exit__` of a class: a new one for an instance, for the class a function, as `ExitStack` wants it."""

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
        """End the block, or what was begun of it; run again where an exception came in between."""

    def _abandon(self, _: ref[Guard]) -> None:
        _leave(self)

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
    """Run a step that bears being run twice; once more if an exception comes in between, which is raised then."""
    try:
        step()
    except BaseException:
        step()
        raise


class setting(Scope):
    """Let attributes of an object have other values within a block.

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
