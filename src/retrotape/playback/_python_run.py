"""Run a step's Python code once, and observe what it does besides running ops."""

from __future__ import annotations

import builtins
import concurrent.futures
import datetime
import dis
import inspect
import io
import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import numpy as np

from retrotape.playback._code import is_user_code, nested_in
from retrotape.playback._python_state import Capture

_CLOCK = frozenset(
    getattr(time, name)
    for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")
)
_NOW = frozenset(("now", "utcnow", "today"))
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_THREADS = {threading.Thread.start.__code__, concurrent.futures.ThreadPoolExecutor.submit.__code__}
_EXECUTE = frozenset(("TFE_Py_Execute", "TFE_Py_ExecuteCancelable"))  # while a step is recorded, ops run through them
_LOGGING = logging.Logger.handle.__code__


class PythonRun:
    """One run of Python code under a profile function.

    Attributes:
      codes: The user code that ran.
      before: The Python state before it.
      reasons: Why the run cannot stand for later ones.
      notes: What later runs will not do, though it is harmless.
    """

    def __init__(self, before: Capture) -> None:
        self.before = before
        self.codes: set[CodeType] = set()
        self.reasons: list[str] = []
        self.notes: list[str] = []
        self._seen: set[CodeType] = set()
        self._known: set[CodeType] = {one for code in before.functions for one in nested_in(code)}
        self.foreign: dict[CodeType, dict[str, Any]] = {}  # user code that was not reachable before, with its globals

    def __call__(self, function: Callable[[], Any]) -> Any:
        """Run a function."""
        states = _random_states(self.before.generators)
        sys.setprofile(self._on_event)
        try:
            return function()
        finally:
            sys.setprofile(None)
            now = _random_states(self.before.generators)
            drawn = [name.rstrip("+") for name, state in states.items() if now[name] != state]
            self.reasons += [f"it draws random numbers of {name}" for name in drawn]

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code not in self._seen:
                self._seen.add(code)
                self._on_code(frame, code)
        elif event == "c_call" and frame.f_code in self.codes:
            self._on_c_call(frame, arg)
        elif event == "c_exception" and getattr(arg, "__name__", "") in _EXECUTE:
            self.reasons.append(f"an op in it fails{place_of(frame)}")

    def _on_code(self, frame: FrameType, code: CodeType) -> None:
        if not is_user_code(code):
            if code in _THREADS:
                self.reasons.append(f"it starts a thread{place_of(frame)}")
            elif code is _LOGGING:
                self.notes.append(f"a message was logged{place_of(frame)}")
            return
        if code.co_flags & inspect.CO_GENERATOR and frame.f_lasti > _begin(code):
            self.reasons.append(f"it resumes a generator that was started before{place_of(frame)}")
        self.codes.add(code)
        if code not in self._known:
            self.foreign[code] = frame.f_globals
            self._known.update(nested_in(code))
            self.before.add_code(code, frame.f_globals)

    def _on_c_call(self, frame: FrameType, arg: Any) -> None:
        if arg is builtins.print:
            self.notes.append(f"`print` ran{place_of(frame)}")
        elif arg is builtins.input or arg is io.open:
            self.reasons.append(f"it calls `{arg.__name__}`{place_of(frame)}")
        elif type(arg).__name__ == "builtin_function_or_method":
            owner = arg.__self__
            if arg in _CLOCK or (arg.__name__ in _NOW and isinstance(owner, type) and issubclass(owner, datetime.date)):
                self.reasons.append(f"it reads the clock{place_of(frame)}")
            elif arg.__name__ == "write" and isinstance(owner, _FILES) and owner not in (sys.stdout, sys.stderr):
                self.reasons.append(f"it writes to a file{place_of(frame)}")


def _begin(code: CodeType) -> int:
    """Return where a function begins: a generator is there when it runs for the first time."""
    return next((step.offset for step in dis.get_instructions(code) if step.opname == "RESUME"), 0)


def _random_states(generators: list[Any]) -> dict[str, Any]:
    """Return the states of generators of random numbers: those of Python and NumPy, and others that are known."""
    found: dict[str, Any] = {"Python's `random`": random.getstate(), "NumPy": repr(np.random.get_state(legacy=False))}
    return {**found, **{f"NumPy{'+' * number}": repr(_state_of(one)) for number, one in enumerate(generators, 1)}}


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return getattr(generator, "bit_generator", generator).state


def place_of(frame: FrameType | None) -> str:
    """Return the line of user code that runs in a frame, or called it, as ` at file:line`."""
    while frame is not None and not is_user_code(frame.f_code):
        frame = frame.f_back
    return "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
