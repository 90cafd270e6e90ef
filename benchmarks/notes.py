"""What the notes for `tape.why` cost: per op that runs, per look of Python at a value, and per question.

Run: `python benchmarks/notes.py`
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import _measure
import tensorflow as tf

import retrotape as rt
from retrotape.tf import hooks

CALLS = 200
OPS = 100_000


@contextmanager
def without_notes() -> Iterator[None]:
    """Record without the hooks that note looks."""
    before = hooks._HOOKS
    hooks._HOOKS = tuple(hook for hook in before if hook[1] not in ("_numpy", "py_func_common"))
    try:
        yield
    finally:
        hooks._HOOKS = before


def recorded(work: Callable[[], object]) -> None:
    with rt.Tape():
        for _ in range(CALLS):
            work()


def unnoted(work: Callable[[], object]) -> None:
    with without_notes():
        recorded(work)


def bare(work: Callable[[], object]) -> None:
    for _ in range(CALLS):
        work()


def per_note() -> None:
    x, scalar = tf.constant([1.0, 2.0, 3.0]), tf.constant(2.0)
    works = {
        "op: tf.add": lambda: tf.add(x, x),
        "op: tf.reduce_sum": lambda: tf.reduce_sum(x),
        "look: x.numpy()": x.numpy,
        "look: float(x)": lambda: float(scalar),
        "look: bool(x)": lambda: bool(scalar),
        "look: f'{x}'": lambda: f"{scalar}",
    }
    rows = []
    for name, work in works.items():
        found = _measure.interleaved(
            {
                "bare": lambda work=work: bare(work),
                "off": lambda work=work: unnoted(work),
                "on": lambda work=work: recorded(work),
            },
            repeat=41,
        )
        micros = [value / CALLS * 1e6 for value in found.values()]
        rows.append([name, *(f"{value:.2f}" for value in micros), f"{micros[2] - micros[1]:+.2f}"])
    columns = ["work", "no tape", "without notes", "with notes", "a note costs"]
    _measure.table("Microseconds each, while recording", columns, rows)


def per_question() -> None:
    rows = []
    for name, cut in {"connected": tf.identity, "stop_gradient": tf.stop_gradient, "round": tf.round}.items():
        w = tf.Variable(1.0)
        with rt.Tape() as tape:
            h = cut(w * 1.0)
            for _ in range(OPS // 2):
                h = tf.raw_ops.Sqrt(x=tf.raw_ops.Mul(x=h, y=h))
        start = time.process_time()
        found = tape.why(h, w)
        rows.append([name, found.verdict.name, f"{time.process_time() - start:.2f}"])
    _measure.table(f"Seconds for `why` on a tape of {OPS:,} ops", ["program", "verdict", "CPU seconds"], rows)


if __name__ == "__main__":
    _measure.one_thread()
    per_note()
    per_question()
