"""Farms of tapes: time, memory and efficiency of every executor at two workers, beside a plain loop.

Each way runs in a process of its own, with one thread for TensorFlow everywhere, so that two workers have twice the
cores of one process. Starting (loading TensorFlow in every process, and a first farm) is measured apart from work.
Efficiency is the time of a farm in one process, measured in turns, over twice the time of two workers. On a machine
that does other work too, wall time says little, so there is a second column: the CPU time of one process over that of
all processes of the other way. Memory is the sum of the peaks of all processes.
Run: `python benchmarks/farm.py [--json FILE]`; Dask and Ray are left out where they are not installed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import _measure

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
# name: tapes, tapes in a chunk, width, layers; the second kind takes about 0.2 s each
KINDS = {"small": (192, 8, 16, 3), "0.2 s each": (32, 2, 512, 16)}
REPEAT = 2
MALLOC = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def save_tapes(folder: Path, count: int, width: int, layers: int) -> None:
    """Save tapes of a recurrent net, each with data of its own."""
    import tensorflow as tf

    import retrotape as rt

    w = tf.Variable(tf.random.stateless_normal((width, width), (0, 1)) / width**0.5, name="w")
    for number in range(count):
        x = tf.random.stateless_normal((width, width), (number, 2))
        with rt.Tape() as tape:
            state = x
            for _ in range(layers):
                state = tf.tanh(state @ w)
            loss = tf.reduce_mean(state**2)
        tape.save(folder / f"{number:04}.tape", loss=loss)


# ------------------------------------------------------------------ one way, in a process of its own


def loop(paths: list[str], chunk: int) -> Any:
    """Return the sum by a plain loop."""
    import numpy as np

    import retrotape as rt

    total = np.float64(0.0)
    for path in paths:
        total = total + rt.load(path).gradient("loss", "w").numpy()
    return total


def farm(executor: Any) -> Callable[[list[str], int], Any]:
    import retrotape as rt

    return lambda paths, chunk: rt.farm.backward(paths, "loss", "w", executor=executor, chunk=chunk)["w"].numpy()


@contextmanager
def way(name: str) -> Iterator[Callable[[list[str], int], Any]]:
    """Yield the function that is timed; its workers end with the block."""
    with ExitStack() as stack:
        if name == "plain loop":
            yield loop
        elif name == "one process":
            yield farm(None)
        elif name == "process pool":
            context = multiprocessing.get_context("spawn")
            yield farm(stack.enter_context(ProcessPoolExecutor(2, mp_context=context)))
        elif name == "Dask":
            import dask
            from distributed import Client, LocalCluster

            # By default Dask's workers give memory back at once, which costs a third of the time with large tensors.
            dask.config.set({"distributed.nanny.pre-spawn-environ": dict.fromkeys(MALLOC, 1 << 29)})
            options: dict[str, Any] = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
            cluster = stack.enter_context(LocalCluster(n_workers=2, **options))
            yield farm(stack.enter_context(Client(cluster)))
        else:
            import ray

            ray.init(_node_ip_address="127.0.0.1", include_dashboard=False, num_cpus=2, log_to_driver=False)
            stack.callback(ray.shutdown)
            yield farm("ray")


def measure(name: str, folder: str, chunk: int) -> dict[str, float]:
    """Return the seconds for starting, the least seconds for the work here and there, and the peak of memory."""
    paths = sorted(map(str, Path(folder).glob("*.tape")))
    begin = time.perf_counter()
    with way(name) as run:
        run(paths[:4], 1)  # so that both workers have loaded everything
        start = time.perf_counter() - begin
        here = farm(None)
        here(paths[:4], 1)
        times: dict[str, list[tuple[float, float]]] = {"here": [], "there": []}
        for _ in range(REPEAT):
            for where, ask in (("there", run), ("here", here)):
                wall, cpu = time.perf_counter(), cpu_of_all()
                ask(paths, chunk)
                times[where].append((time.perf_counter() - wall, cpu_of_all() - cpu))
        work, cpu = map(min, zip(*times["there"], strict=True))
        one, cpu_of_one = map(min, zip(*times["here"], strict=True))
        found = {"start": start, "work": work, "each": work / len(paths), "cpu": cpu, "megabytes": peak_of_all()}
        return {**found, "efficiency": one / (2.0 * work), "cpu efficiency": cpu_of_one / cpu}


def processes() -> Iterator[Path]:
    """Yield the folders in /proc of this process and all that it has started; Linux only."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    ours, more = set(), {os.getpid()}
    while more != ours:
        ours, more = more, more | {number for number, parent in parents.items() if parent in more}
    yield from (Path("/proc") / str(number) for number in ours)


def cpu_of_all() -> float:
    """Return the CPU seconds of all processes so far, with those that have ended."""
    ticks = 0
    for folder in processes():
        with suppress(OSError):
            ticks += sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_of_all() -> float:
    """Return the sum of the peaks of memory of all processes, in MB."""
    total = 0.0
    for folder in processes():
        with suppress(OSError):
            lines = (folder / "status").read_text().splitlines()
            total += sum(int(line.split()[1]) / 1000.0 for line in lines if line.startswith("VmHWM"))
    return total


# ------------------------------------------------------------------ all of them


def child(*arguments: str) -> Any:
    """Run this file with other arguments, with one thread, and return what it prints last, as JSON."""
    environment = {**os.environ, **ONE_THREAD, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray on loopback only
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def main(path: str | None) -> None:
    ways = ["plain loop", "one process", "process pool"]
    ways += [name for name, package in (("Dask", "distributed"), ("Ray", "ray")) if find_spec(package)]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for kind, (count, chunk, width, layers) in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            child("--save", folder, str(count), str(width), str(layers))
            found[kind] = {name: child("--measure", name, folder, str(chunk)) for name in ways}
        rows = []
        for name, values in found[kind].items():
            alone = name in ("plain loop", "one process")
            shares = ["", ""] if alone else [f"{values[key]:.2f}" for key in ("efficiency", "cpu efficiency")]
            times = [f"{values['start']:.1f}", f"{values['work']:.2f}", f"{values['cpu']:.2f}"]
            rows.append([name, *times, f"{1000.0 * values['each']:.1f}", *shares, f"{values['megabytes']:.0f}"])
        columns = ["", "start s", "work s", "CPU s", "ms per tape", "efficiency at 2", "by CPU time", "memory MB"]
        _measure.table(f"{count} tapes, {kind}, in chunks of {chunk}", columns, rows)
    if path is not None:
        Path(path).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--save"]:
        save_tapes(Path(sys.argv[2]), *map(int, sys.argv[3:]))
        print("null")
    elif sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--json", metavar="FILE", help="write the figures to a file")
        main(parser.parse_args().json)
