"""Cost of recording host reads for `tape.why`: per op, per host read (Python reads a value), and per query.

Run: `python benchmarks/notes.py`
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import _measure
import tensorflow as tf

import retrotape as rt
from retrotape.tf import hook_table

CALLS = 200
OPS = 100_000


@contextmanager
def without_host_reads() -> Iterator[None]:
    """Record without the hooks that record host reads."""
    before = list(hook_table.hooks)
    hook_table.hooks[:] = [hook for hook in before if hook.name not in ("_numpy", "py_func_common")]
    try:
        yield
    finally:
        hook_table.hooks[:] = before


def recorded(work: Callable[[], object]) -> None:
    with rt.Tape():
        for _ in range(CALLS):
            work()


def partly_recorded(work: Callable[[], object]) -> None:
    with without_host_reads():
        recorded(work)


def bare(work: Callable[[], object]) -> None:
    for _ in range(CALLS):
        work()


def per_host_read() -> None:
    x, scalar = tf.constant([1.0, 2.0, 3.0]), tf.constant(2.0)
    works = {
        "op: tf.add": lambda: tf.add(x, x),
        "op: tf.reduce_sum": lambda: tf.reduce_sum(x),
        "host read: x.numpy()": x.numpy,
        "host read: float(x)": lambda: float(scalar),
        "host read: bool(x)": lambda: bool(scalar),
        "host read: f'{x}'": lambda: f"{scalar}",
    }
    rows = []
    for name, work in works.items():
        found = _measure.interleaved(
            {
                "bare": lambda work=work: bare(work),
                "off": lambda work=work: partly_recorded(work),
                "on": lambda work=work: recorded(work),
            },
            repeat=41,
        )
        micros = [value / CALLS * 1e6 for value in found.values()]
        rows.append([name, *(f"{value:.2f}" for value in micros), f"{micros[2] - micros[1]:+.2f}"])
    columns = ["work", "no tape", "without host reads", "with host reads", "difference"]
    _measure.table("Microseconds each, while recording", columns, rows)


def per_query() -> None:
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
    per_host_read()
    per_query()
