"""Run as a program: interrupt at each line of retrotape that a program passes.

Arguments: names of programs, names of exceptions, each with commas between, and how many places of each are tried.
The exception is caught outside of the block, and once more inside, so that recording goes on. Prints, as JSON, the
number of places, and what was wrong.
"""

from __future__ import annotations

import json
import os
import random
import sys
from itertools import islice
from typing import Any

import tensorflow as tf

import retrotape as rt
from helpers.untouched import touched
from stress.interrupts import scenarios

ROOT = os.path.dirname(rt.__file__) + os.sep
EXCEPTIONS = {kind.__name__: kind for kind in (KeyboardInterrupt, SystemExit, MemoryError)}


class Interrupter:
    """Raises at the given line event, of those in files of retrotape."""

    def __init__(self, stop: int, kind: type[BaseException]) -> None:
        self.count, self.stop, self.kind = 0, stop, kind
        self.where = ""
        self.passed: dict[tuple[str, int], list[int]] = {}  # by line: at which events

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(ROOT) else None

    def _line(self, frame: Any, event: str, arg: Any) -> Any:
        if event == "line":
            self.count += 1
            self.passed.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(self.count)
            if self.count == self.stop:
                self.where = f"{frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_lineno}"
                sys.settrace(None)
                raise self.kind
        return self._line


def run(step: scenarios.Step, interrupter: Interrupter, inside: bool) -> tuple[Any, scenarios.Made, bool]:
    """Return the tape that was interrupted, what was made, and whether the exception came."""
    made: scenarios.Made = {}
    tape = rt.Tape()
    came = False
    raised = (interrupter.kind, tf.errors.OpError)  # the latter is what TensorFlow makes of it in a `tf.py_function`
    sys.settrace(interrupter)
    try:
        with tape:
            try:
                step(made)
            except raised:
                came = True
                if not inside:
                    raise
            sys.settrace(interrupter if interrupter.count < interrupter.stop else None)
            made["later"] = scenarios.W * 5.0
    except raised:
        came = True
    finally:
        sys.settrace(None)
    return tape, made, came


def judge(step: scenarios.Step, right: dict[str, Any], stop: int, kind: type[BaseException], inside: bool) -> str:
    """Return what is wrong after an exception at one line; nothing if nothing is."""
    scenarios.reset()
    interrupter = Interrupter(stop, kind)
    tape, made, came = run(step, interrupter, inside)
    problems = [f"left: {item}" for item in touched()]
    problems += ["the exception was lost"] if interrupter.where and not came else []
    problems += scenarios.wrong(scenarios.gradients(tape, made), right, errors_allowed=True)
    problems += [f"next: {item}" for item in scenarios.next_is_wrong(step, right)]
    problems += [f"in the end: {item}" for item in touched()]
    return f"{interrupter.where}: {'; '.join(problems)}" if problems else ""


def try_all(name: str, kind: type[BaseException], inside: bool, at_most: int) -> tuple[int, list[str]]:
    """Return how many places were tried, and what was wrong at each where something was."""
    step = scenarios.STEPS[name]
    right = {**scenarios.expected(step), "later": 5.0 * tf.ones(2).numpy()}
    scenarios.next_is_wrong(step, right)  # once, for what is made at the first time only
    scenarios.reset()
    whole = Interrupter(sys.maxsize, kind)
    run(step, whole, inside)
    # Of a line that is passed often: the first time, the second and the last.
    places = sorted({event for events in whole.passed.values() for event in (*events[:2], events[-1])})
    chosen = random.Random(0).sample(places, min(at_most, len(places)))
    found = (judge(step, right, stop, kind, inside) for stop in chosen)
    wrong = list(islice((text for text in found if text), 1))  # whatever follows may follow from that
    return len(chosen), [f"{name}, {kind.__name__}, {'in' if inside else 'out'}side: {text}" for text in wrong]


def main(names: str, kinds: str, at_most: str) -> None:
    count, wrong = 0, []
    for name in names.split(","):
        for kind in kinds.split(","):
            for inside in (False, True):
                tried, found = try_all(name, EXCEPTIONS[kind], inside, int(at_most))
                count, wrong = count + tried, wrong + found
    print(json.dumps({"places": count, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
