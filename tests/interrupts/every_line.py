"""Run as a program: interrupt at each line of retrotape that a program passes, one forked child for each.

Arguments: the name of the program, the name of the exception, `outside` or `inside` (where it is caught), and of how
many places one is tried. Prints one line for each place where something was wrong, and then the number of places.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import tensorflow as tf

import retrotape as rt
import scenarios

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
    sys.settrace(interrupter)
    try:
        with tape:
            try:
                step(made)
            except interrupter.kind:
                came = True
                if not inside:
                    raise
            sys.settrace(interrupter if interrupter.count < interrupter.stop else None)
            made["later"] = scenarios.W * 5.0
    except interrupter.kind:
        came = True
    finally:
        sys.settrace(None)
    return tape, made, came


def judge(step: scenarios.Step, right: dict[str, Any], stop: int, kind: type[BaseException], inside: bool) -> str:
    """Return what is wrong after an exception at one line; nothing if nothing is."""
    scenarios.reset()
    interrupter = Interrupter(stop, kind)
    tape, made, came = run(step, interrupter, inside)
    problems = [f"left: {item}" for item in scenarios.touched()]
    problems += ["the exception was lost"] if interrupter.where and not came else []
    problems += scenarios.wrong(scenarios.gradients(tape, made), right, errors_allowed=True)
    problems += [f"next: {item}" for item in scenarios.next_is_wrong(step, right)]
    problems += [f"in the end: {item}" for item in scenarios.touched()]
    return f"{interrupter.where}: {'; '.join(problems)}" if problems else ""


def in_child(work: Any) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode()[:4000] or b"-")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    return "died" if not data else "" if data == b"-" else data.decode(errors="replace")


def main(name: str, kind: str, where: str, one_of: str) -> None:
    step, inside = scenarios.STEPS[name], where == "inside"
    right = {**scenarios.expected(step), "later": 5.0 * tf.ones(2).numpy()}
    scenarios.next_is_wrong(step, right)  # once, for what is made at the first time only
    scenarios.reset()
    whole = Interrupter(sys.maxsize, EXCEPTIONS[kind])
    run(step, whole, inside)
    # Of a line that is passed often: the first time, the second and the last.
    places = sorted({event for events in whole.passed.values() for event in (*events[:2], events[-1])})[:: int(one_of)]
    found = [in_child(lambda stop=stop: judge(step, right, stop, EXCEPTIONS[kind], inside)) for stop in places]
    print(json.dumps({"places": len(places), "wrong": [text for text in found if text]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
