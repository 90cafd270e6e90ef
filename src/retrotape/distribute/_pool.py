"""A process pool of the farm's own. This file is loaded first in each process, so it must not load TensorFlow."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor

# TensorFlow and the libraries below it read these when they start.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def new_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool whose processes share the cores. They are spawned: TensorFlow does not survive a fork."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(threads,))


def _begin(threads: int) -> None:
    _limit_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the process that started this one: killed, it cannot tell its workers to end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)  # other threads may be busy; a result appears only when its file is whole


def _limit_threads(count: int) -> None:
    for name in _THREADS:
        os.environ.setdefault(name, str(count))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # not the same lines of information from each process
