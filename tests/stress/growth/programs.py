"""Programs as long as one likes, and all that is done with a tape of one."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import retrotape as rt
from retrotape import cli

Stage = tuple[str, Callable[[], Any]]


def constants(ops: int) -> tuple[Any, Any]:
    """A chain in which every op takes a number of Python's."""
    w = tf.Variable(1.0)
    h = w * 1.0
    for number in range(ops):
        h = h * (1.0 + 1e-9 * number) if number % 2 else h + 1e-9 * number
    return h, w


def variables(ops: int) -> tuple[Any, Any]:
    """Many variables, most of one name, each read, assigned, and looked at."""
    w = tf.Variable(1.0)
    many = [tf.Variable(1.0, name="v" if number % 3 else f"v{number}") for number in range(ops // 20)]
    h = w * 1.0
    for number in range(ops // 5):
        v = many[number % len(many)]
        h = h + v * 1e-6
        v.assign(h)
        h = h * 1.0 if float(h) < 2.0 else h * 0.5
    return h, w


def versions(ops: int) -> tuple[Any, Any]:
    """One variable that is assigned again and again, and a custom gradient that reads it."""
    w, v = tf.Variable(1.0), tf.Variable(1.0)

    @tf.custom_gradient
    def scaled(x: Any) -> Any:
        return x * 1.0, lambda grad: grad * (1.0 + 0.0 * v)

    h = w * 1.0
    for _ in range(ops // 6):
        h = scaled(h)
        v.assign(v * 1.0)
    return h * v, w


def calls(ops: int) -> tuple[Any, Any]:
    """Calls of a function that assigns, of layers, and pauses."""
    w, v = tf.Variable(1.0), tf.Variable(0.0)
    layer = keras.layers.Activation("linear")

    @tf.function
    def step(x: Any) -> Any:
        v.assign_add(1e-6)
        return x + v * w

    h = w * 1.0
    for _ in range(ops // 10):
        h = layer(step(h)) * 1.0
    return h, w


PROGRAMS = {program.__name__: program for program in (constants, variables, versions, calls)}


def stages(program: Callable[[int], tuple[Any, Any]], ops: int, folder: Path) -> Iterator[Stage]:
    """Yield what is done with a tape of a program, to be run in this order."""
    tape, path = rt.Tape(), folder / "long.tape"
    found: list[Any] = []

    def record() -> None:
        with tape:
            found.extend(program(ops))

    def load() -> None:
        found.append(rt.load(path))

    yield "record", record
    y, w = found
    yield "program", lambda: str(tape.program)
    yield "gradient", lambda: tape.gradient(y, w)
    yield "gradient through updates", lambda: tape.gradient(y, w, through_updates=True)
    yield "why", lambda: str(tape.why(y, w))
    yield "first_nonfinite", tape.first_nonfinite
    yield "summary", lambda: str(tape.summary())
    yield "save", lambda: tape.save(path, y=y, w=w)
    yield "load", load
    loaded = found[-1]
    yield "loaded: gradient", lambda: loaded.gradient("y", "w")
    yield "loaded: why", lambda: str(loaded.why("y", "w"))
    yield "loaded: first_nonfinite", loaded.first_nonfinite
    yield "loaded: summary", lambda: str(loaded.summary())
    yield "loaded: save", lambda: loaded.save(folder / "again.tape")
    for verb in ("show", "check"):
        yield verb, lambda verb=verb: command(verb, path)


def command(verb: str, path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main([verb, str(path)], standalone_mode=False)
