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


def one_thread() -> None:
    """Let TensorFlow use one thread, so that CPU time and wall time mean the same."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def interleaved(contenders: Mapping[str, Callable[[], object]], repeat: int = 25, inner: int = 1) -> dict[str, float]:
    """Return the median seconds of each contender."""
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeat):
            for name, run in contenders.items():
                start = time.process_time()
                for _ in range(inner):
                    run()
                times[name].append((time.process_time() - start) / inner)
                gc.collect(0)
    finally:
        gc.enable()
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
