"""Ours against the stock tape and `tf.function`; with `--peers`, against JAX, PyTorch and TorchJD as well.

The same work in every framework, with a fresh tape for every call; losses and gradients are compared before
anything is timed. One process for each framework stays alive, and all contenders take turns in short blocks. Shown are
CPU milliseconds of one call (median), the ratio to the stock tape in the same round (median and quartiles), and the
first call, in which functions are traced or compiled. Once with one thread, once with the threads that each framework
takes by itself; then the ratio of wall times is shown as well.

Run: `python benchmarks/speed.py`; `--only mlp` for some workloads, `--goals` for the ratios that we aim at.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import _measure
import numpy as np
from _worker import FIRST_CALLS, Worker, difference

STOCK, TOLERANCE = "stock tape", 1e-4
PEERS = ["jax", "torch"]


class Work(NamedTuple):
    """A row of the summary."""

    title: str
    goal: float | None = None  # the ratio of ours to the stock tape
    peers: bool = True


WORKS = {
    "mlp": Work("MLP, 6 layers of 64: step", 0.45),
    "mlp-gradient": Work("MLP: gradient call alone", 0.08, peers=False),
    "mlp-losses": Work("MLP: eight losses", 0.17),
    "cnn": Work("CNN, ResNet-20: step", 0.85),
    "transformer": Work("Transformer, 2 layers of 64: step", 0.50),
    "transformer-gradient": Work("Transformer: gradient call alone", 0.22, peers=False),
    "transformer-losses": Work("Transformer: eight losses", 0.25),
    "hvp": Work("MLP: Hessian-vector product", 0.35),
    "hessian": Work("Hessian of 400 weights, stock: pfor", 0.15),
    "hyper": Work("gradient through 20 steps of Keras SGD", 0.70),
    "tapes": Work("16 sub-models, a tape each, joined", 0.45),
}


class Options(NamedTuple):
    """How much to measure."""

    rounds: int
    block: float
    calls: int = FIRST_CALLS  # before results are compared


class Expected(NamedTuple):
    """Whose results a contender must have, and how much they may differ."""

    contender: str = STOCK
    tolerance: float = TOLERANCE


class Found(NamedTuple):
    """The figures of one contender."""

    first: list[float]  # CPU seconds of the first calls
    difference: float  # from the expected results
    cpu: list[float]
    wall: list[float]


def check(worker: Worker, name: str, folder: Path, calls: int, expected: Expected) -> tuple[list[float], float]:
    """Make the first calls; return their seconds, and how far their results are from those that are expected."""
    path = folder / f"{name}.npz"
    seconds = worker.first_calls(name, path, calls)
    with np.load(path) as result, np.load(folder / f"{expected.contender}.npz") as other:
        apart = difference(dict(result), dict(other))
    if not apart <= expected.tolerance:
        raise SystemExit(f"The results of {name} differ from those of {expected.contender} by {apart:.1e}, relatively.")
    return seconds, apart


def measure(
    work: str,
    threads: int,
    options: Options,
    frameworks: Sequence[str],
    expect: Callable[[str], Expected] = lambda name: Expected(),
) -> dict[str, Found]:
    """Return the figures of all contenders; those that results are expected of come first."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = [stack.enter_context(Worker(name, work, threads)) for name in frameworks]
        running = {name: worker for worker in workers for name in worker.contenders}
        found = {
            name: Found(*check(worker, name, folder, options.calls, expect(name)), [], [])
            for name, worker in running.items()
        }
        sizes = {
            name: _measure.calls_per_block(worker.block(name, 1).cpu, options.block) for name, worker in running.items()
        }
        order = list(running)
        for _ in range(options.rounds):
            for name in order:
                seconds = running[name].block(name, sizes[name])
                found[name].cpu.append(seconds.cpu)
                found[name].wall.append(seconds.wall)
            order = order[1:] + order[:1]  # a contender is not always after the same one
    return found


def show(work: str, threads: int, found: dict[str, Found]) -> None:
    stock, rows = found[STOCK], []
    for name, one in found.items():
        row = [name, f"{statistics.median(one.cpu) * 1e3:.3f}", str(_measure.ratio(one.cpu, stock.cpu))]
        row += [f"{one.first[0] * 1e3:.0f}", f"{one.difference:.0e}"]
        rows.append(row if threads else [*row, str(_measure.ratio(one.wall, stock.wall))])
    columns = ["", "CPU ms", "/ stock tape", "first call, ms", "difference"]
    title = f"{WORKS[work].title}, {'one thread' if threads else 'default threads'}"
    _measure.table(title, columns if threads else [*columns, "/ stock, wall"], rows)


def summarize(figures: dict[int, dict[str, dict[str, Found]]], goals: bool) -> None:
    """Print one line for each workload: ours / stock."""
    columns = ["ours / stock tape, CPU", *("one thread" if threads else "default threads" for threads in figures)]
    rows = []
    for work in next(iter(figures.values())):
        found = [figures[threads][work] for threads in figures]
        ratios = [_measure.ratio(one["ours"].cpu, one[STOCK].cpu) for one in found]
        goal = [_measure.against(WORKS[work].goal, ratios[0].median)] if goals else []
        rows.append([WORKS[work].title, *map(str, ratios), *goal])
    _measure.table("Summary", [*columns, "goal"] if goals else columns, rows)


def main() -> None:
    parser = _measure.options(__doc__)
    parser.add_argument("--peers", action="store_true", help="measure JAX and PyTorch too; see `make bench-peers`")
    parser.add_argument("--only", nargs="+", choices=WORKS, metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 0], help="1, or 0 for the default (both)")
    parser.add_argument("--rounds", type=int, default=15, help="turns that each contender takes (%(default)s)")
    parser.add_argument("--goals", action="store_true", help="show the ratios that we aim at")
    given = parser.parse_args()
    options = Options(2 if given.quick else given.rounds, 0.0 if given.quick else _measure.BLOCK)
    figures: dict[int, dict[str, dict[str, Found]]] = {}
    for threads in given.threads[:1] if given.quick else given.threads:
        figures[threads] = {}
        for work in given.only or (["mlp", "tapes"] if given.quick else WORKS):
            peers = PEERS if given.peers and WORKS[work].peers else []
            figures[threads][work] = measure(work, threads, options, ["tensorflow", *peers])
            show(work, threads, figures[threads][work])
    summarize(figures, given.goals)
    _measure.write_json(given.json, _as_data(figures))


def _as_data(figures: dict[int, dict[str, dict[str, Found]]]) -> Any:
    return [
        {"work": work, "threads": threads or "default", "contender": name, **one._asdict()}
        for threads, works in figures.items()
        for work, found in works.items()
        for name, one in found.items()
    ]


if __name__ == "__main__":
    main()
