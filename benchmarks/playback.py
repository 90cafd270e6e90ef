"""Steps that are played back (`rt.compile`) against eager mode and `tf.function`; with `--peers`, JAX and PyTorch too.

Two figures for each contender. **Hot**: CPU milliseconds of one call when nothing is compiled any more (median), and
the ratio to eager mode in the same round; contenders take turns in short blocks. **Start**: CPU milliseconds of the
first calls, up to the last that took clearly longer than a hot one; each contender in a new process, in which
TensorFlow has run the step in eager mode before. Results of the fifth call are compared with those of eager mode.

Run: `python benchmarks/playback.py --threads 1`; `--only mlp-update` for some workloads.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import _measure
from _worker import Worker
from speed import PEERS, STOCK, Found, Options, measure

OURS = "rt.compile"
COMPILERS = ("tf.function", "tf.function, XLA")
COLD = 1.5  # times as long as a hot call


class Work(NamedTuple):
    """A row of the summary."""

    title: str
    peer: str  # what to compare with, beside TensorFlow
    goal: float  # the ratio to that peer, hot


WORKS = {
    "mlp-update": Work("MLP, 6 layers of 64: gradient and update", "jax.jit", 1.0),
    "mlp-losses": Work("MLP: eight losses", "jax.jit", 1.0),
    "hyper": Work("gradient through 20 steps of Keras SGD", "jax.jit", 1.5),
    "cnn-update": Work("CNN, ResNet-20: gradient and update", "torch", 1.0),
    "transformer-update": Work("Transformer, 2 layers of 64: gradient and update", "jax.jit", 1.0),
    "tapes": Work("16 sub-models, a tape each", "jax.jit", 1.0),
}
STARTS = {"tf.function": 0.2, "jax.jit": 0.1}  # goals: ratios of the start


def until_hot(times: Sequence[float], hot: float) -> float:
    """Return the seconds of the first calls, up to the last cold one.

    >>> until_hot([0.25, 0.5, 0.001, 0.001], 0.001), until_hot([0.001, 0.001], 0.001)
    (0.75, 0.0)
    """
    cold = [number for number, seconds in enumerate(times, 1) if seconds > COLD * hot]
    return sum(times[: cold[-1]]) if cold else 0.0


def first_calls(framework: str, work: str, threads: int, name: str) -> list[float]:
    """Return the seconds of the first calls in a new process."""
    with tempfile.TemporaryDirectory() as folder, Worker(framework, work, threads) as worker:
        if STOCK in worker.contenders:
            worker.first(STOCK, Path(folder) / "stock.npz")
        return worker.first_calls(name, Path(folder) / "result.npz")


def with_starts(work: str, threads: int, found: Mapping[str, Found], runs: int) -> dict[str, Found]:
    """Return the figures with first calls in new processes in place of those in a shared one; medians over runs."""
    frameworks = {"jax.jit": "jax", "torch": "torch", "TorchJD": "torch"}
    result = {}
    for name, one in found.items():
        times = [first_calls(frameworks.get(name, "playback"), work, threads, name) for _ in range(runs)]
        result[name] = one._replace(first=[statistics.median(calls) for calls in zip(*times, strict=True)] or one.first)
    return result


def start_of(one: Found) -> float:
    return until_hot(one.first, statistics.median(one.cpu))


def show(work: str, threads: int, found: Mapping[str, Found]) -> None:
    stock, rows = found[STOCK], []
    for name, one in found.items():
        row = [name, f"{statistics.median(one.cpu) * 1e3:.3f}", str(_measure.ratio(one.cpu, stock.cpu))]
        row += ["" if name == STOCK else f"{start_of(one) * 1e3:.0f}", f"{one.difference:.0e}"]
        rows.append(row if threads else [*row, str(_measure.ratio(one.wall, stock.wall))])
    columns = ["", "hot, CPU ms", "/ eager", "start, CPU ms", "difference"]
    title = f"{WORKS[work].title}, {'one thread' if threads else 'default threads'}"
    _measure.table(title, columns if threads else [*columns, "/ eager, wall"], rows)


def summarize(threads: int, figures: Mapping[str, Mapping[str, Found]]) -> None:
    """Print one line for each workload: played back against the better of TensorFlow's compilers, and a peer."""
    rows = []
    for work, found in figures.items():
        ours = min((found[OURS], found[f"{OURS}, XLA"]), key=lambda one: statistics.median(one.cpu))
        better = min((found[name] for name in COMPILERS), key=lambda one: statistics.median(one.cpu))
        row = [WORKS[work].title, _goal(_measure.ratio(ours.cpu, better.cpu).median, 1.0)]
        peer = found.get(WORKS[work].peer)
        row.append(_goal(_measure.ratio(ours.cpu, peer.cpu).median, WORKS[work].goal) if peer else "")
        for name, goal in STARTS.items():
            row.append(_goal(start_of(found[OURS]) / max(start_of(found[name]), 1e-6), goal) if name in found else "")
        rows.append(row)
    columns = ["played back /", "better of tf.function and XLA, hot", "peer, hot", "tf.function, start", "JAX, start"]
    _measure.table(f"Summary, {'one thread' if threads else 'default threads'}", columns, rows)


def _goal(ratio: float, goal: float) -> str:
    return f"{_measure.short(ratio)} {_measure.against(goal, ratio)}"


def main() -> None:
    parser = _measure.options(__doc__)
    parser.add_argument("--peers", action="store_true", help="measure JAX and PyTorch too; see `make bench-peers`")
    parser.add_argument("--only", nargs="+", choices=WORKS, metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 0], help="1, or 0 for the default (both)")
    parser.add_argument("--rounds", type=int, default=15, help="turns that each contender takes (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="new processes of each contender (%(default)s)")
    given = parser.parse_args()
    options = Options(2 if given.quick else given.rounds, 0.0 if given.quick else _measure.BLOCK)
    frameworks, data = ["playback", *(PEERS if given.peers else [])], []
    for threads in given.threads[:1] if given.quick else given.threads:
        figures: dict[str, dict[str, Found]] = {}
        for work in given.only or (["mlp-update", "tapes"] if given.quick else WORKS):
            found: dict[str, Found] = measure(work, threads, options, frameworks)
            figures[work] = found if given.quick else with_starts(work, threads, found, given.runs)
            show(work, threads, figures[work])
            data += [_as_data(work, threads, name, one) for name, one in figures[work].items()]
        summarize(threads, figures)
    _measure.write_json(given.json, data)


def _as_data(work: str, threads: int, name: str, one: Found) -> dict[str, Any]:
    return {"work": work, "threads": threads or "default", "contender": name, "start": start_of(one), **one._asdict()}


if __name__ == "__main__":
    main()
