"""Run a step's Python code once, and observe what it does besides running ops."""

from __future__ import annotations

import builtins
import concurrent.futures
import datetime
import dis
import gc
import inspect
import io
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

import numpy as np

from retrotape.playback._code import by_line, is_standard, is_user_code, is_users_name, nested_in
from retrotape.playback._python_state import Capture
from retrotape.tf.core import tf

_CLOCK = frozenset(
    getattr(time, name)
    for name in """
    ctime gmtime localtime monotonic monotonic_ns perf_counter perf_counter_ns process_time strftime time time_ns
    """.split()  # noqa: SIM905
)
_NOW = frozenset(("now", "utcnow", "today"))
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_THREADS = {threading.Thread.start.__code__, concurrent.futures.ThreadPoolExecutor.submit.__code__}
_EXECUTE = frozenset(("TFE_Py_Execute", "TFE_Py_ExecuteCancelable", "TFE_Py_FastPathExecute"))
_ERRORS = frozenset(("_status_to_exception", "raise_from_not_ok_status"))  # functions that raise the error of an op
_ERROR = tf.errors.OpError.__init__.__code__
_PRINTING = frozenset(
    """
    critical debug error exception info log print set_description set_postfix set_postfix_str warn warning write
    """.split()  # noqa: SIM905
)
# Names by which user code makes random numbers from what the system gives it.
_ENTROPY = frozenset(
    ("SystemRandom", "default_rng", "getrandom", "token_bytes", "token_hex", "urandom", "uuid1", "uuid4")
)
# Files of the standard library whose functions exchange data with other threads and processes.
_EXCHANGES = ("queue.py", "subprocess.py", "socket.py")
_EXCHANGE_FOLDERS = ("multiprocessing", "asyncio", "futures")
_SYSTEM = frozenset(("posix", "nt", "_socket", "select"))  # modules of functions that ask the operating system
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
        self._has_error = False
        self._known: set[CodeType] = {one for code in before.functions for one in nested_in(code)}
        self.spaces: dict[CodeType, dict[str, Any]] = {}  # the globals of the user code that ran

    @property
    def runs_user_code(self) -> bool:
        """Whether any code ran that is not of a library; Python generates that of named tuples."""
        return any(not str(space.get("__name__")).startswith("namedtuple_") for space in self.spaces.values())

    def __call__(self, function: Callable[[], Any]) -> Any:
        """Run a function."""
        states = _random_states(self.before.generators)
        collects = gc.isenabled()
        try:
            gc.disable()  # or callbacks of the collector, which other tools add, would count as code of the step
            sys.setprofile(self._on_event)
            return function()
        finally:
            sys.setprofile(None)
            if collects:
                gc.enable()
            now = _random_states(self.before.generators)
            drawn = [name.rstrip("+") for name, state in states.items() if now[name] != state]
            self.reasons += [f"it draws random numbers of {name}" for name in drawn]

    def _on_event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code is _ERROR:
                self._has_error = True
            elif code.co_name in _ERRORS:
                self.reasons.append(f"an op in it fails{place_of(frame)}")
            if code not in self._seen:
                self._seen.add(code)
                self._on_code(frame, code)
        elif event == "c_call":
            name = getattr(arg, "__name__", "")
            if name in _EXECUTE:
                self._has_error = False
            elif frame.f_code in self.codes or self._is_for_user(frame):
                self._on_c_call(frame, arg)
        elif event == "c_exception" and self._has_error and getattr(arg, "__name__", "") in _EXECUTE:
            self.reasons.append(f"an op in it fails{place_of(frame)}")

    def _is_for_user(self, frame: FrameType) -> bool:
        """Return whether a frame is one of the standard library that user code has called."""
        seen: FrameType | None = frame
        while seen is not None and is_standard(seen.f_code):
            file = seen.f_code.co_filename
            if file.startswith("<frozen importlib") or os.path.basename(os.path.dirname(file)) == "logging":
                return False
            seen = seen.f_back
        return seen is not None and seen is not frame and seen.f_code in self.codes

    def _on_code(self, frame: FrameType, code: CodeType) -> None:
        # Python generates the methods of data classes, also of those of libraries.
        is_generated = code.co_filename == "<string>" and not is_users_name(str(frame.f_globals.get("__name__")))
        if is_generated or not is_user_code(code):
            if code in _THREADS:
                self.reasons.append(f"it starts a thread{place_of(frame)}")
            elif is_standard(code) and _exchanges(code.co_filename) and self._is_for_user(frame):
                self.reasons.append(f"it exchanges data with other threads or processes{place_of(frame)}")
            elif code is _LOGGING:
                self.notes.append(f"a message was logged{place_of(frame)}")
            return
        if code.co_flags & inspect.CO_GENERATOR and frame.f_lasti > _begin(code):
            self.reasons.append(f"it resumes a generator that was started before{place_of(frame)}")
        self.codes.add(code)
        if not _ENTROPY.isdisjoint(code.co_names):
            self.reasons.append(f"it makes a generator of random numbers{place_of(frame)}")
        self.spaces[code] = frame.f_globals
        if code not in self._known:  # it was not reachable before
            self._known.update(nested_in(code))
            try:
                self.before.add_code(code, frame.f_globals)
            except Exception as error:  # not in the code of the step, which called this
                self.reasons.append(f"its state cannot be compared: {error}")

    def _on_c_call(self, frame: FrameType, arg: Any) -> None:
        if arg is builtins.print:
            self.notes.append(f"`print` ran{place_of(frame)}")
        elif arg is builtins.input or arg is io.open:
            self.reasons.append(f"it calls `{arg.__name__}`{place_of(frame)}")
        elif type(arg).__name__ == "builtin_function_or_method":
            owner = arg.__self__
            if arg in _CLOCK or (arg.__name__ in _NOW and isinstance(owner, type) and issubclass(owner, datetime.date)):
                self.reasons.append(f"it reads the clock{place_of(frame)}")
            elif getattr(owner, "__name__", "") in _SYSTEM:
                self.reasons.append(f"it asks the operating system, by `{arg.__name__}`{place_of(frame)}")
            elif arg.__name__ == "write" and isinstance(owner, _FILES) and owner not in (sys.stdout, sys.stderr):
                self.reasons.append(f"it writes to a file{place_of(frame)}")


def _exchanges(file: str) -> bool:
    folder, name = os.path.split(file)
    return name in _EXCHANGES or os.path.basename(folder) in _EXCHANGE_FOLDERS


def is_printing(frame: FrameType | None) -> bool:
    """Return whether the line of user code that runs calls a function that shows text."""
    while frame is not None and not is_user_code(frame.f_code):
        frame = frame.f_back
    return frame is not None and not _PRINTING.isdisjoint(_names_on_lines(frame.f_code).get(frame.f_lineno, ()))


@lru_cache(1024)
def _names_on_lines(code: CodeType) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for line, step in by_line(code):
        if step.opname.startswith("LOAD") and isinstance(step.argval, str):
            found.setdefault(line, set()).add(step.argval)
    return found


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
