"""A process pool of the farm's own. This file is loaded first in each process, so it must not load TensorFlow."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

# TensorFlow and the libraries below it read these when they start.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def new_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool whose processes share the cores. They are spawned: TensorFlow does not survive a fork."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_limit_threads, initargs=(threads,))


def _limit_threads(count: int) -> None:
    for name in _THREADS:
        os.environ.setdefault(name, str(count))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # not the same lines of information from each process
