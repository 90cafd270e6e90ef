"""Run a step's Python code once, and observe what it depends on and what it does besides running ops."""

from __future__ import annotations

import builtins
import concurrent.futures
import logging
import random
import threading
import types
from collections.abc import Callable
from functools import lru_cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType
from typing import Any

import numpy as np

from retrotape.python import (
    LOOKS_UP,
    METHODS_THAT_SEE_ALL,
    RESUMABLE,
    SEES_ALL,
    USER,
    WATCHED,
    NewObjects,
    Walk,
    by_line,
    exchanges_data,
    is_atom,
    is_generated,
    makes_function,
    names_in,
    observe,
    of_code,
    place_of,
    reads_state,
    runs_for_user,
    state_of,
    why_impure,
    why_impure_type,
)
from retrotape.tf.core import tf

# What leads user code to state that is not compared.
_UNSEEN = frozenset(
    """
    __annotations__ __closure__ __globals__ __kwdefaults__ __setstate__ __subclasses__ cell_contents import_module
    """.split()  # noqa: SIM905
)
_VIEWS = frozenset(map(type, ({}.keys(), {}.values(), {}.items())))
_THREADS = {threading.Thread.start.__code__, concurrent.futures.ThreadPoolExecutor.submit.__code__}
_ERRORS = frozenset(("_status_to_exception", "raise_from_not_ok_status"))  # functions that raise the error of an op
_EXECUTE = frozenset(("TFE_Py_Execute", "TFE_Py_ExecuteCancelable", "TFE_Py_FastPathExecute"))
_ERROR = tf.errors.OpError.__init__.__code__
_LOGGING = logging.Logger.handle.__code__
_PRINTING = frozenset(
    """
    critical debug error exception info log print set_description set_postfix set_postfix_str warn warning write
    """.split()  # noqa: SIM905
)
_OUTSIDE = "; do that outside the step, and pass in what it gives"
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


class PythonRun:
    """One run of Python code that is observed.

    Args:
      walk: Notes what the code refers to.

    Attributes:
      codes: The user code that ran, by `id`.
      reasons: Why the run cannot stand for later ones.
      notes: What later runs will not do, though it is harmless.
      new: The `id`s of objects that were made.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self.codes: dict[int, CodeType] = {}
        self.reasons: list[str] = []
        self.notes: list[str] = []
        self.new: frozenset[int] = frozenset()
        self._closures: list[tuple[CodeType, dict[str, Any]]] = []
        self._generators: list[FrameType] = []

    def __call__(self, function: Callable[[], Any]) -> Any:
        """Run a function; only one thread may do so at a time."""
        globals_before = _global_states()
        made = NewObjects()
        try:
            return made.during(lambda: observe(self, function))
        finally:
            self.new = made.ids
            self._generators.clear()
            drawn = [name for name, state in _global_states().items() if state != globals_before[name]]
            self.reasons += [f"it draws random numbers of {name}" for name in drawn]

    def finish(self) -> None:
        """Note what can be told only after the run."""
        for generator, state in self._walk.generators:
            if not self._walk.is_new(generator) and state_of(generator) != state:
                owner = "Python's `random`" if isinstance(generator, random.Random) else "NumPy"
                self.reasons.append(f"it draws random numbers of {owner}")
        for code, values in self._closures:
            if not self._walk.knows(code, values):
                self.reasons.append(f"what {code.co_name!r} refers to cannot be compared: it was not found")

    # ------------------------------------------------------------------ what the observer tells

    def watches(self, code: CodeType) -> bool:
        """Return whether code of a library is told of."""
        told = code is _ERROR or code is _LOGGING or code.co_name in _ERRORS
        return told or reads_state(code) or makes_function(code)

    def on_start(self, frame: FrameType, origin: int) -> None:
        """Code has started that is not a library's, or that is watched."""
        code = frame.f_code
        if origin == WATCHED:
            self._on_watched(frame, code)
            return
        if is_generated(code) and not tf.executing_eagerly():
            return  # a function is traced; later calls run what was traced, in eager code too
        if origin != USER and (code.co_filename.startswith("<frozen importlib") or not self._is_for_user(frame)):
            return
        try:
            if id(code) not in self._walk.codes:
                self._on_code(frame, code, origin)
            self._on_frame(frame, code, origin)
        except Exception as error:  # not in the code of the step, which called this
            self.reasons.append(f"its state cannot be compared: {error}")

    def _is_for_user(self, frame: FrameType) -> bool:
        return runs_for_user(frame.f_back, PythonRun.__call__.__code__)

    def _on_watched(self, frame: FrameType, code: CodeType) -> None:
        caller = frame.f_back
        if code is _LOGGING:
            if runs_for_user(_outside(frame, code.co_filename.replace("\\", "/"))):
                self.notes.append(f"a message was logged{place_of(frame)}")
        elif code is _ERROR or code.co_name in _ERRORS:
            while caller is not None and caller.f_code.co_name == "__init__":
                caller = caller.f_back
            if code is not _ERROR or (caller and not _EXECUTE.isdisjoint(caller.f_code.co_names)):
                self.reasons.append(f"an op in it fails{place_of(frame)}")
        elif makes_function(code):
            if runs_for_user(_outside(caller, "tensorflow/python/util/")):  # of decorators
                self.reasons.append(f"it makes a tf.function{place_of(frame)}; make it once, outside the step")
        elif runs_for_user(caller) and not is_printing(caller):
            self.reasons.append(f"it calls `{code.co_name}`, which reads files or settings{place_of(frame)}{_OUTSIDE}")

    def _on_code(self, frame: FrameType, code: CodeType, origin: int) -> None:
        if origin == USER:
            self.codes[id(code)] = code
            self.reasons += [
                f"it uses `{name}`{place_of(frame)}{_OUTSIDE}" for name in code.co_names if name in _UNSEEN
            ]
        elif code in _THREADS:
            self.reasons.insert(0, f"it starts a thread{place_of(frame)}")
        elif exchanges_data(code.co_filename):
            self.reasons.append(f"it exchanges data with other threads or processes{place_of(frame)}")
        self._walk.start(code, frame.f_globals)

    def _on_frame(self, frame: FrameType, code: CodeType, origin: int) -> None:
        """Note the arguments of a function, with the object that it is a method of, and what is in its closure."""
        if code.co_flags & RESUMABLE:
            self._generators.append(frame)
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
        values = frame.f_locals
        for name in (*code.co_varnames[:count], *code.co_freevars):
            value = values.get(name)
            if origin != USER and type(value) in _VIEWS:
                continue  # the standard library takes one of a dictionary that its functions refer to
            if not is_atom(type(value)) and name != ".0":
                self._walk.add(value, name, is_old=False)
        if code.co_freevars and origin == USER:
            free = [name for name in code.co_freevars if name in values]
            held = {name: values[name] for name in free if not (name == "ag__" and is_generated(code))}
            if held and not self._walk.knows(code, held):
                self._closures.append((code, held))  # the function may be met later

    def on_resume(self, frame: FrameType) -> None:
        """A generator goes on."""
        is_known = any(frame is one for one in self._generators)
        if not is_known and of_code(frame.f_code, frame.f_globals) == USER:
            self.reasons.append(f"it resumes a generator that was started before{place_of(frame)}")

    def on_call(self, frame: FrameType, function: Any, arguments: tuple[Any, ...]) -> None:
        """Code that is not a library's calls a function, or anything else, in C."""
        if not runs_for_user(frame, PythonRun.__call__.__code__):
            return
        try:
            self._on_call(frame, function, arguments)
        except Exception as error:
            self.reasons.append(f"its state cannot be compared: {error}")

    def _on_call(self, frame: FrameType, function: Any, arguments: tuple[Any, ...]) -> None:
        kind, reason = type(function), None
        owner = getattr(function, "__self__", None) if kind in _BOUND else None
        if function is builtins.print:
            self.notes.append(f"`print` ran{place_of(frame)}")
        elif kind in _METHODS:
            owner = arguments[0] if arguments else None
            reason = why_impure(function, owner)
        elif kind is types.BuiltinFunctionType or kind is types.MethodWrapperType:
            reason = why_impure(function, owner)
            if function is builtins.globals and not names_in(frame.f_code).sees_globals:
                reason = None
        elif issubclass(kind, type):
            reason = why_impure_type(function)
        else:
            self._walk.add(function, f"`{getattr(function, '__name__', kind.__name__)}`", is_old=False)
        name = getattr(function, "__name__", "") if kind in (*_BOUND, *_METHODS) else ""
        is_seen = name in LOOKS_UP and name in frame.f_code.co_names  # its constants are
        if not is_seen and (
            name in METHODS_THAT_SEE_ALL or (kind is types.BuiltinFunctionType and function in SEES_ALL)
        ):
            self._walk.see_all()
        if reason is not None:
            self.reasons.append(f"{reason}{place_of(frame)}{_OUTSIDE}")
        elif owner is frame.f_globals and not names_in(frame.f_code).sees_globals:
            pass
        elif owner is not None and type(owner) is not types.ModuleType:
            self._walk.add(owner, f"the object of `{name}`", is_old=False)


_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)


def _outside(frame: FrameType | None, file: str) -> FrameType | None:
    """Return the first frame around one that is not of a file, or of a folder."""
    while frame is not None and file in frame.f_code.co_filename.replace("\\", "/"):
        frame = frame.f_back
    return frame


def is_printing(frame: FrameType | None) -> bool:
    """Return whether the line of user code that runs calls a function that shows text."""
    while frame is not None and of_code(frame.f_code, frame.f_globals) != USER:
        frame = frame.f_back
    return frame is not None and not _PRINTING.isdisjoint(_names_on_lines(frame.f_code).get(frame.f_lineno, ()))


@lru_cache(1024)
def _names_on_lines(code: CodeType) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for line, step in by_line(code):
        if step.opname.startswith("LOAD") and isinstance(step.argval, str):
            found.setdefault(line, set()).add(step.argval)
    return found


def _global_states() -> dict[str, Any]:
    """Return the states of the global generators of random numbers."""
    own: Any = np.random.get_state()
    _, keys, *rest = own
    return {"Python's `random`": random.getstate(), "NumPy": (keys.tobytes(), *rest)}
