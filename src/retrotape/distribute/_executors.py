"""Where chunks are computed: here, by any `concurrent.futures` executor, by processes of our own, on Dask, on Ray.

Each way takes tasks and yields outcomes as they arrive, in any order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from retrotape.distribute._job import Outcome, Task
from retrotape.distribute._worker import run
from retrotape.errors import FarmError, MissingPackageError

Outcomes = Generator[Outcome, None, None]

# Unless it is 0, Ray takes an address of the machine in the network in place of 127.0.0.1, on Linux too.
_RAY_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_ray_on_loopback: Any = None  # Ray, if it was imported here
_TAKEN = 'None, a number of processes, a `concurrent.futures` executor, a `dask.distributed.Client`, or "ray"'


class LostWorkerError(Exception):
    """A worker died, and its executor with it."""


class Way(NamedTuple):
    """How to run tasks, and whether workers share this process's memory, so that functions need not be pickled."""

    run: Callable[[Sequence[Task]], Outcomes]
    shares_memory: bool


def way_of(executor: Any) -> Way:
    """Return how to use an executor.

    Raises:
      TypeError: If it is none that we know.
      MissingPackageError: If it needs a package that is not installed.
    """
    if executor is None:
        return Way(_here, True)
    if isinstance(executor, int) and not isinstance(executor, bool):
        raise ValueError(f"executor= takes {_TAKEN}; got {executor} processes.")
    if isinstance(executor, futures.Executor):
        _refuse_forks(executor)
        shares = isinstance(executor, futures.ThreadPoolExecutor) and not _is_dask_executor(executor)
        return Way(lambda tasks: _on_futures(executor, tasks), shares)
    if executor == "ray" or getattr(executor, "__name__", None) == "ray":
        if find_spec("ray") is None:
            raise MissingPackageError("A farm on Ray", "ray", "ray")
        return Way(_on_ray, False)
    if _is_dask_client(executor):
        return Way(lambda tasks: _on_dask(executor, tasks), False)
    raise TypeError(f"executor= takes {_TAKEN}; got {executor!r}.")


def _refuse_forks(executor: futures.Executor) -> None:
    """Raise for a pool of forked processes: TensorFlow, which this process has started, would hang in them."""
    started = getattr(executor, "_mp_context", None)
    if (
        isinstance(executor, futures.ProcessPoolExecutor)
        and started is not None
        and started.get_start_method() == "fork"
    ):
        raise ValueError(
            "executor= is a pool whose processes are forked, in which TensorFlow hangs; expected spawned ones: "
            '`ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))`, or `executor=2`.'
        )


def _is_dask_client(executor: Any) -> bool:
    distributed = sys.modules.get("distributed")  # whoever has a client has imported it
    return distributed is not None and isinstance(executor, distributed.Client)


def _is_dask_executor(executor: Any) -> bool:
    return type(executor).__module__.partition(".")[0] == "distributed"


def _here(tasks: Sequence[Task]) -> Outcomes:
    for task in tasks:
        yield run(task)


def _on_futures(executor: futures.Executor, tasks: Sequence[Task]) -> Outcomes:
    waiting: list[futures.Future[Outcome]] = []
    try:
        for task in tasks:
            waiting.append(executor.submit(run, task))  # noqa: PERF401  # if it raises, those before are cancelled
        for done in futures.as_completed(waiting):
            yield done.result()
    except futures.BrokenExecutor as error:
        raise LostWorkerError(str(error)) from error
    finally:
        for future in waiting:
            future.cancel()


def _on_dask(client: Any, tasks: Sequence[Task]) -> Outcomes:
    distributed: Any = sys.modules["distributed"]
    # `pure=False` gives each task a new key: Dask would not run one again whose result file was deleted.
    waiting = [client.submit(run, task, pure=False) for task in tasks]
    try:
        for future in distributed.as_completed(waiting):
            try:
                yield future.result()
            except distributed.KilledWorker as error:
                raise FarmError(
                    f"Dask gave up: a chunk was lost with each worker that ran it ({error})",
                    "They may lack memory: give workers more, or a smaller `chunk=`.",
                ) from error
    finally:
        client.cancel([future for future in waiting if not future.done()])


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray, which reads this when it is imported, and the processes that it starts, listen on 127.0.0.1 only."""
    before = os.environ.get(_RAY_CLUSTER)
    os.environ[_RAY_CLUSTER] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_RAY_CLUSTER]
        else:
            os.environ[_RAY_CLUSTER] = before


def _ray() -> tuple[Any, bool]:
    """Return Ray, and whether we started it: on this machine, with ports on loopback only, or as RAY_ADDRESS says."""
    global _ray_on_loopback
    ray: Any = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return ray, False
    if os.environ.get("RAY_ADDRESS"):
        ray = ray or import_module("ray")
        ray.init(log_to_driver=False)
        return ray, True
    can_be = "0" if ray is None or _ray_on_loopback is ray else ""
    if os.environ.get(_RAY_CLUSTER, can_be) != "0":
        raise FarmError(
            "Ray was imported, but not started; started by a farm now, it would listen on all network interfaces",
            f"Start it: `ray.init()`. Or set `{_RAY_CLUSTER}=0` before you import it, for ports on loopback only.",
        )
    with _on_loopback():
        if ray is None:
            ray = _ray_on_loopback = import_module("ray")
        ray.init(_node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False)
    return ray, True


def _on_ray(tasks: Sequence[Task]) -> Outcomes:
    ray, ours = _ray()
    try:
        remote = ray.remote(num_cpus=1, max_retries=3)(run)
        waiting = [remote.remote(task) for task in tasks]
        try:
            while waiting:
                done, waiting = ray.wait(waiting)
                yield ray.get(done[0])
        except ray.exceptions.WorkerCrashedError as error:
            raise FarmError(
                "Ray gave up: a chunk was lost with each worker that ran it",
                "They may lack memory: give workers more, or a smaller `chunk=`.",
            ) from error
        finally:
            for reference in waiting:
                ray.cancel(reference)
    finally:
        if ours:
            ray.shutdown()
