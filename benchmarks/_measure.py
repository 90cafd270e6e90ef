"""What all benchmarks share: blocks of calls that take turns, medians and spread, memory, tables, JSON.

Times are CPU times of the process, so that other work on the machine does not count. Contenders take turns in short
blocks; a **ratio** is that of two blocks of one round, and what is shown is the median over rounds, with quartiles. A
loop of our own, where pyperf or asv could be had, because neither lets several processes take turns: each measures one
contender after the other, and the load of a shared machine changes meanwhile.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
MEGA = 2**20
BLOCK = 0.05  # CPU seconds of a block, at least
Rounds = Mapping[str, Sequence[float]]  # contender: seconds of one call, in each round


# ------------------------------------------------------------------ time


class Contender(NamedTuple):
    """What is timed: `run`, with the result of `prepare` if there is one. That is not timed, nor is `named`."""

    run: Callable[..., Any]
    prepare: Callable[[], Any] | None = None
    named: Callable[[Any], Mapping[str, Any]] = dict  # the results of `run` by name


class Seconds(NamedTuple):
    """How long one call took, on average over a block."""

    cpu: float
    wall: float


def limit_threads(count: int) -> None:
    """Let TensorFlow use so many threads for one op, and as many for several; 0 is its default."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(count)


def one_thread() -> None:
    """Let TensorFlow use one thread, so that CPU time and wall time mean the same."""
    limit_threads(1)


def run_block(contender: Contender, calls: int = 1) -> Seconds:
    """Time so many calls. Garbage is collected at the end of a block, on its time, and not in between."""
    enabled, (run, prepare, _) = gc.isenabled(), contender
    gc.disable()
    try:
        if prepare is None:
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(calls):
                run()
            gc.collect(0)
            return Seconds((time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls)
        cpu = wall = 0.0
        for _ in range(calls):
            prepared = prepare()
            cpu, wall = cpu - time.process_time(), wall - time.perf_counter()
            run(prepared)
            cpu, wall = cpu + time.process_time(), wall + time.perf_counter()
        gc.collect(0)
        return Seconds(cpu / calls, wall / calls)
    finally:
        if enabled:
            gc.enable()


def cpu_seconds(run: Callable[[], object], inner: int = 1) -> float:
    """Return the CPU seconds of one call, measured over a block."""
    return run_block(Contender(run), inner).cpu


def calls_per_block(seconds: float, block: float = BLOCK) -> int:
    """Return how many calls of that length make a block.

    >>> calls_per_block(0.02), calls_per_block(3.0)
    (3, 1)
    """
    return max(1, -int(-block // max(seconds, 1e-7)))


def take_turns(contenders: Mapping[str, Callable[[], object]], repeat: int = 25, inner: int | None = 1) -> Rounds:
    """Return the seconds of each contender, round by round; `inner` calls make a block, None as many as it takes."""
    for run in contenders.values():
        run()
    sizes = {name: inner or calls_per_block(cpu_seconds(run, 3)) for name, run in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    gc.collect()
    for _ in range(repeat):
        for name, run in contenders.items():
            times[name].append(cpu_seconds(run, sizes[name]))
    return times


def interleaved(contenders: Mapping[str, Callable[[], object]], repeat: int = 25, inner: int = 1) -> dict[str, float]:
    """Return the median seconds of each contender."""
    return {name: statistics.median(values) for name, values in take_turns(contenders, repeat, inner).items()}


class Ratio(NamedTuple):
    """The median of the ratios of all rounds, and their quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{short(self.median)} ({short(self.low)}-{short(self.high)})"


def ratio(times: Sequence[float], base: Sequence[float]) -> Ratio:
    """Compare two contenders, round by round.

    >>> ratio([2.0, 2.0, 6.0], [1.0, 2.0, 2.0])
    Ratio(median=2.0, low=1.5, high=2.5)
    """
    found = [time / other for time, other in zip(times, base, strict=True)]
    low, middle, high = statistics.quantiles(found, method="inclusive") if len(found) > 1 else found * 3
    return Ratio(middle, low, high)


# ------------------------------------------------------------------ memory


def status(field: str) -> float:
    """Return a field of `/proc/self/status`, in megabytes: `VmRSS` is what is resident, `VmHWM` the peak of that."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def reset_peak() -> None:
    """Let `VmHWM` begin anew."""
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")


def return_memory() -> None:
    """Collect garbage, and return to the system what the heap has free: it would hide what is taken afterwards."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


class _Heap(ctypes.Structure):
    """The `struct mallinfo2` of glibc."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


def allocated() -> float:
    """Return the megabytes that C and C++ have allocated and not freed: tensors, above all; objects of Python not."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = _Heap
    heap = libc.mallinfo2()
    return (heap.uordblks + heap.hblkhd) / MEGA


# ------------------------------------------------------------------ programs and their results


def in_process(*command: object, python: Path | str = sys.executable, env: Mapping[str, str] | None = None) -> Any:
    """Run a program of this folder in a new process, and return the JSON in the last line that it prints."""
    found = subprocess.run(
        [python, "-W", "ignore", *map(str, command)],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        check=False,
    )
    if found.returncode:
        raise SystemExit(f"{found.stderr}\n{found.args} ended with {found.returncode}; see above.")
    return json.loads(found.stdout.splitlines()[-1])


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure over several runs."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def options(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every program has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the numbers mean little")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures to this file")
    return parser


def write_json(path: Path | None, figures: Any) -> None:
    """Write figures to a file if one is given, with what they depend on."""
    if path is not None:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
        path.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1) + "\n")


def short(number: float) -> str:
    """Return a number with two significant digits, at least two decimals if it is small.

    >>> short(0.4321), short(0.01234), short(12.34)
    ('0.43', '0.012', '12.3')
    """
    if abs(number) >= 10:
        return f"{number:.1f}"
    return f"{number:.2f}" if abs(number) >= 0.1 else f"{number:.2g}"


def against(goal: float | None, found: float) -> str:
    """Return a goal, and whether it is met."""
    if goal is None:
        return ""
    return f"≤ {goal:g} " + ("[green]met[/]" if found <= goal else "[red]missed[/]")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        shown.add_row(*row)
    Console(width=120).print(shown)
