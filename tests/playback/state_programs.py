"""Programs in which Python state changes between two calls of a step: run in eager code, and compiled."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from textwrap import indent
from types import ModuleType
from typing import Any

import tensorflow as tf

import retrotape as rt
from playback.state_kinds import Kind, Way

_HEAD = """import argparse, array, collections, contextlib, contextvars, dataclasses, datetime, decimal, enum, fractions
import functools, itertools, logging, operator, os, random, threading, types, weakref
import keras
import numpy as np
import tensorflow as tf
def enter(context):
    with context as value:
        return value
"""


def source(kind: Kind, way: Way, is_global: bool) -> str:
    """Return a module with a function `make`, which returns the step, and what changes the state."""
    scope = "global" if is_global else "nonlocal"
    names = "".join(f"    {scope} h\n" for change in kind.changes[:1])
    steps = [kind.made, way.made.replace("$", kind.read)]
    steps += [f"def step(x):\n    return x * {way.read.replace('$', kind.read)}"]
    steps += [f"def change_{k}():\n{names}{indent(one, '    ')}" for k, one in enumerate(kind.changes)]
    changes = ", ".join(f"change_{k}" for k in range(len(kind.changes)))
    last = f"def make():\n    return step, [{changes}]" if is_global else f"return step, [{changes}]"
    body = "\n".join(filter(None, [*steps, last]))
    return _HEAD + (body if is_global else f"def make():\n{indent(body, '    ')}")


def made(text: str, name: str) -> Any:
    """Return the step of a program, and what changes its state."""
    module = ModuleType(name)
    sys.modules[name] = module
    linecache.cache[f"<{name}>"] = len(text), None, text.splitlines(True), f"<{name}>"
    exec(compile(text, f"<{name}>", "exec"), vars(module))
    return module.make()


def results(text: str, name: str, wrap: Any) -> Iterator[Any]:
    """Yield what the calls of a program give: four, and three after each change."""
    step, changes = made(text, name)
    step = wrap(step)
    for change in [None, *changes]:
        if change is not None:
            change()
        for _ in range(4 if change is None else 3):
            try:
                yield float(step(tf.constant(1.5)))
            except Exception as error:
                yield type(error).__name__


def check(kind: Kind, way: Way, is_global: bool) -> None:
    """Compare a compiled step with eager code; a plain one has to be played back."""
    text = source(kind, way, is_global)
    compiled: list[rt.CompiledStep] = []

    def wrap(step: Any) -> Any:
        compiled.append(rt.compile(step, audit=False, limit=20))
        return compiled[-1]

    expected = list(results(text, "state_eager", lambda step: step))
    assert not any(isinstance(one, str) for one in expected), f"{kind.name}, {way.name}: raised {expected}\n{text}"
    assert not way.tells or len(set(map(repr, expected))) > 1, f"{kind.name}, {way.name}: nothing changes\n{text}"
    found = list(results(text, "state_compiled", wrap))
    assert found == expected, f"{kind.name}, {way.name}: got {found}, expected {expected}\n{text}"
    if kind.plays and way.plays:
        why = compiled[0].why_not_compiled()
        assert sum(one.plays for one in compiled[0].recordings()) > 0, f"{kind.name}, {way.name}: {why}\n{text}"
