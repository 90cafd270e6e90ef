"""Run as a program: interrupt recording, queries, `save` and `load` at random moments.

Arguments: `signal` for real signals, or `thread` for exceptions that another thread sends; how often; a seed. Prints,
as JSON, how often an exception came, and what was wrong.
"""

from __future__ import annotations

import ctypes
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt
from helpers.untouched import touched
from stress.interrupts import of_tensorflow, scenarios

MAIN = threading.get_ident()


@contextmanager
def by_signal(delay: float) -> Iterator[None]:
    signal.signal(signal.SIGALRM, lambda *_: signal.default_int_handler(signal.SIGINT, None))
    signal.setitimer(signal.ITIMER_REAL, delay)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


@contextmanager
def by_thread(delay: float) -> Iterator[None]:
    def send() -> None:
        if not done.wait(delay):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(MAIN), ctypes.py_object(KeyboardInterrupt))

    done = threading.Event()
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        done.set()
        sender.join()
        for _ in range(10):  # one that was sent and has not come yet
            pass


HOW = {"signal": by_signal, "thread": by_thread}


class Queries:
    """What is asked of a tape that was recorded undisturbed; an interrupted query may be asked again."""

    def __init__(self, folder: str) -> None:
        scenarios.reset()
        self._path = f"{folder}/tape"
        with rt.Tape() as self._tape:
            self._y = tf.reduce_sum(scenarios.FUNCTION(scenarios.V) * tf.sin(scenarios.W) ** 3 * scenarios.W)
        self._tape.save(self._path, y=self._y)
        self._ones = tf.ones(2)
        self.all = {"gradient": self.gradient, "hvp": self.hvp, "save": self.save, "load": self.load}
        self._right = {name: query() for name, query in self.all.items()}

    def gradient(self) -> Any:
        return self._tape.gradient(self._y, scenarios.W)

    def hvp(self) -> Any:
        return self._tape.hvp(self._y, scenarios.W, self._ones)

    def save(self) -> Any:
        self._tape.save(self._path, y=self._y)
        return self.load()

    def load(self) -> Any:
        return rt.load(self._path).gradient("y", "w")

    def wrong(self) -> list[str]:
        found = []
        for name, query in self.all.items():
            try:
                right = np.allclose(query(), self._right[name], rtol=1e-5)
            except rt.errors.InterruptedTapeError:
                continue
            found += [] if right else [f"{name} asked again is wrong"]
        return found


def interrupted(run: Callable[[], Any], interrupting: Any, delay: float) -> bool:
    try:
        with interrupting(delay):
            run()
    except (KeyboardInterrupt, tf.errors.OpError):  # TensorFlow makes the latter of what comes in a `tf.py_function`
        return True
    except Exception as error:
        if not of_tensorflow.is_interrupt(error):
            raise
        return True
    return False


def try_step(name: str, right: dict[str, Any], interrupting: Any, delay: float) -> tuple[bool, list[str]]:
    scenarios.reset()
    made: scenarios.Made = {}
    tape = rt.Tape()

    def record() -> None:
        with tape:
            scenarios.STEPS[name](made)

    came = interrupted(record, interrupting, delay)
    of_tensorflow.leave_graph_mode()
    problems = [f"left: {item}" for item in touched()]
    problems += scenarios.wrong(scenarios.gradients(tape, made), right, errors_allowed=True)
    problems += [f"next: {item}" for item in scenarios.next_is_wrong(scenarios.STEPS[name], right)]
    return came, problems


def duration(run: Callable[[], Any]) -> float:
    run()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main(how: str, times: str, seed: str) -> None:
    interrupting, chance = HOW[how], random.Random(int(seed))
    of_tensorflow.read_context_in_c()
    # TensorFlow ends the process where a signal comes as it begins a `tf.py_function` (CHECK failed in py_func.cc).
    rights = {name: scenarios.expected(step) for name, step in scenarios.STEPS.items() if name != "python"}
    lengths = {name: duration(lambda n=name: scenarios.next_is_wrong(scenarios.STEPS[n], rights[n])) for name in rights}
    count, wrong = 0, []
    with tempfile.TemporaryDirectory() as folder:
        queries = Queries(folder)
        lengths |= {name: duration(query) for name, query in queries.all.items()}
        for _ in range(int(times)):
            name = chance.choice([*rights, *queries.all])
            delay = max(1e-6, chance.uniform(0, lengths[name]))
            if name in rights:
                came, problems = try_step(name, rights[name], interrupting, delay)
            else:
                came = interrupted(queries.all[name], interrupting, delay)
                of_tensorflow.leave_graph_mode()
                problems = [f"left: {item}" for item in touched()] + queries.wrong()
                problems += scenarios.next_is_wrong(scenarios.STEPS["ops"], rights["ops"])
                queries = Queries(folder)
            count += came
            problems += [f"in the end: {item}" for item in touched()]
            wrong += [f"{name} after {delay:.6f} s: {'; '.join(problems)}"] if problems else []
    print(json.dumps({"interrupted": count, "wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
