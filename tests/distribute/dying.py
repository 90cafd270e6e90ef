"""Workers that kill themselves half way, once; and the tapes that were loaded. Other processes import this."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from retrotape.distribute import _worker
from retrotape.distribute._pool import new_pool

load = _worker.load_tape


def arm(marker: str, after: int) -> None:
    """Let this process die as if killed when it loads its n-th tape, unless another one has died of it."""
    loads = 0

    def load_or_die(*args, **options):
        nonlocal loads
        loads += 1
        if loads == after and first(marker):
            os.kill(os.getpid(), signal.SIGKILL)
        return load(*args, **options)

    _worker.load_tape = load_or_die


def arm_from_environment() -> None:
    """Do so in a process that takes no arguments."""
    arm(os.environ["DYING_MARKER"], int(os.environ["DYING_AFTER"]))


def first(marker: str) -> bool:
    """Return whether this is the first to come here, of all processes."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def pool(workers: int, marker: str, after: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=arm, initargs=(marker, after))


def die_of(deadly: float, tape) -> float:
    """A question that ends its process on one of the tapes."""
    norm = norm_of_x(tape)
    if norm == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return norm


def dead_pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool whose processes die before they do anything."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=os._exit, initargs=(3,))


def norm_of_x(tape) -> float:
    return float((tape["x"].numpy() ** 2).sum())


def loaded(monkeypatch) -> list[str]:
    """Return a list to which every tape that is loaded from now on is added."""
    paths: list[str] = []

    def noted(path, **options):
        paths.append(Path(path).name)
        return load(path, **options)

    monkeypatch.setattr(_worker, "load_tape", noted)
    return paths


FACTOR = 1.0


def scaled(tape) -> float:
    """A question that depends on what is in this module."""
    return FACTOR * norm_of_x(tape)


def flat_gradient(tape):
    return tape.backward("loss").flatten()


def wait_for_ever() -> None:
    print(os.getpid(), flush=True)
    threading.Event().wait()


if __name__ == "__main__":  # a driver with a worker that is busy
    new_pool(1).submit(wait_for_ever).result()
