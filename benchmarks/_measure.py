"""Interleaved timing: all contenders take turns, in many short runs, and medians are compared.

Measures CPU time of this process, so that other work on the machine does not count.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def limit_threads(count: int) -> None:
    """Let TensorFlow use so many threads for one op, and as many for several."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(count)


def one_thread() -> None:
    """Let TensorFlow use one thread, so that CPU time and wall time mean the same."""
    limit_threads(1)


def cpu_seconds(run: Callable[[], object], inner: int = 1) -> float:
    """Return the CPU seconds of one call, measured over a block of calls without garbage collection."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.process_time()
        for _ in range(inner):
            run()
        return (time.process_time() - start) / inner
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()


def interleaved(contenders: Mapping[str, Callable[[], object]], repeat: int = 25, inner: int = 1) -> dict[str, float]:
    """Return the median seconds of each contender."""
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    for _ in range(repeat):
        for name, run in contenders.items():
            times[name].append(cpu_seconds(run, inner))
    return {name: statistics.median(values) for name, values in times.items()}


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        shown.add_row(*row)
    Console(width=120).print(shown)
