"""See each frame of code that is not a library's, and each function in C that it calls, while something runs.

From Python 3.12 on `sys.monitoring` tells: code of libraries switches its events off the first time it runs. Before
that, and where other tools have taken all places, it is the profile function of the thread.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from itertools import chain, starmap
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Protocol

from retrotape._locks import Turn
from retrotape.python._origin import LIBRARY, of_code

RESUMABLE = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
WATCHED = -1  # code of a library that is told of nevertheless


class Observer(Protocol):
    """What is told."""

    def watches(self, code: CodeType) -> bool:
        """Return whether code of a library is told of."""

    def on_start(self, frame: FrameType, origin: int) -> None:
        """Code has started that is not a library's, or that is watched."""

    def on_resume(self, frame: FrameType) -> None:
        """A generator goes on that is not a library's."""

    def on_call(self, frame: FrameType, function: Any, arguments: tuple[Any, ...]) -> None:
        """Code that is not a library's calls something; before Python 3.12 only functions and methods in C are told.

        `arguments` has the first one, if it is known.
        """


def observe(observer: Observer, function: Callable[[], Any]) -> Any:
    """Return what a function returns, and tell of what runs meanwhile on this thread."""
    tool = _free_tool()
    return _monitored(observer, function, tool) if tool is not None else _profiled(observer, function)


def is_observable() -> bool:
    """Return whether no profiler is in the way."""
    return _free_tool() is not None or sys.getprofile() is None


# ------------------------------------------------------------------ the profile function


def _profiled(observer: Observer, function: Callable[[], Any]) -> Any:
    origins: dict[int, int] = {}  # by `id`: to hash code takes as long as to run it
    kept: list[CodeType] = []

    def on_event(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call":
            origin = origins.get(id(code))
            if origin is None:
                kept.append(code)
                origin = origins[id(code)] = _origin(observer, frame)
            if origin == LIBRARY:
                return
            if code.co_flags & RESUMABLE and frame.f_lasti > _begin(code):
                observer.on_resume(frame)
            else:
                observer.on_start(frame, origin)
        elif event == "c_call" and origins.get(id(code), LIBRARY) > LIBRARY:
            observer.on_call(frame, arg, ())

    try:
        sys.setprofile(on_event)
        return function()
    finally:
        sys.setprofile(None)


def _origin(observer: Observer, frame: FrameType) -> int:
    origin = of_code(frame.f_code, frame.f_globals)
    return WATCHED if origin == LIBRARY and observer.watches(frame.f_code) else origin


@lru_cache(1024)
def _begin(code: CodeType) -> int:
    """Return where a generator is when it runs for the first time."""
    return next((step.offset for step in dis.get_instructions(code) if step.opname == "RESUME"), 0)


# ------------------------------------------------------------------ monitoring

_monitoring: Any = getattr(sys, "monitoring", None)


def _free_tool() -> int | None:
    if _monitoring is None:
        return None
    return next((tool for tool in (4, 3) if _monitoring.get_tool(tool) is None), None)


def _monitored(observer: Observer, function: Callable[[], Any], tool: int) -> Any:
    events, missing, thread = _monitoring.events, _monitoring.MISSING, get_ident()
    local: dict[int, CodeType] = {}

    def on_start(code: CodeType, offset: int) -> Any:
        if get_ident() != thread:
            return None
        frame = sys._getframe(1)
        origin = _origin(observer, frame)
        if origin == LIBRARY:
            return _monitoring.DISABLE
        if origin != WATCHED and id(code) not in local:
            local[id(code)] = code
            _monitoring.set_local_events(tool, code, events.CALL)
        observer.on_start(frame, origin)
        return None

    def on_resume(code: CodeType, offset: int) -> Any:
        if get_ident() != thread:
            return None
        frame = sys._getframe(1)
        if _origin(observer, frame) == LIBRARY:
            return _monitoring.DISABLE
        observer.on_resume(frame)
        return None

    def on_call(code: CodeType, offset: int, called: Any, first: Any) -> None:
        if get_ident() == thread:
            observer.on_call(sys._getframe(1), called, () if first is missing else (first,))

    _monitoring.use_tool_id(tool, "retrotape")
    try:
        for event, callback in ((events.PY_START, on_start), (events.PY_RESUME, on_resume), (events.CALL, on_call)):
            _monitoring.register_callback(tool, event, callback)
        _monitoring.set_events(tool, events.PY_START | events.PY_RESUME)
        return function()
    finally:
        _monitoring.set_events(tool, 0)
        for code in local.values():
            _monitoring.set_local_events(tool, code, 0)
        for event in (events.PY_START, events.PY_RESUME, events.CALL):
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)


# ------------------------------------------------------------------ objects that are new

_OF_PYTHON = 10_000  # Python 3.12 has frozen some hundred objects itself


class NewObjects:
    """Tells which objects are made while something runs. There can be one such run in a process.

    Attributes:
      turn: To be had for as long as one is used.
      ids: The `id`s of those that still exist at its end, if the collector of garbage knows them.
    """

    turn = Turn()

    def __init__(self) -> None:
        self.ids: frozenset[int] = frozenset()
        self._thread = get_ident()
        self._freezes = self._collects = False

    def during(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns, and keep the `id`s of what it has made."""
        # Without the collector, or its callbacks, which other tools add, would count as code that runs.
        global _running
        before: frozenset[int] = frozenset()
        self._collects = gc.isenabled()
        self._freezes = gc.get_freeze_count() <= _OF_PYTHON  # else the program has frozen objects, and they stay so
        _running = self
        try:
            gc.disable()
            if self._freezes:
                gc.freeze()
            else:
                before = _ids_of_objects()
            try:
                return function()
            finally:
                self.ids = _ids_of_objects() - before
        finally:  # an interrupt may come after each call
            try:
                if self._freezes:
                    gc.unfreeze()
            finally:
                if self._collects:
                    gc.enable()
                _running = None

    def after_fork(self) -> None:
        """End it in a process where its thread is not."""
        if self._thread != get_ident():
            if self._freezes:
                gc.unfreeze()
            if self._collects:
                gc.enable()


_running: NewObjects | None = None


def _after_fork() -> None:
    if _running is not None:
        _running.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _ids_of_objects() -> frozenset[int]:
    """Return the `id`s of all objects, by one call: no other thread meets its half-made ones in a list of ours."""
    return frozenset(map(id, chain.from_iterable(starmap(gc.get_objects, ((),)))))
