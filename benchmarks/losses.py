"""The gradients of eight losses, and methods that combine them: time and memory; with `--peers`, TorchJD and JAX too.

`rows` is the gradient of each loss (the 8 × P Jacobian) of an MLP with eight heads, `gramian` their inner products.
`step-64` and `step-512` are a whole step of training at that width: UPGrad on what the losses share, the heads' own
gradients, SGD; rows that begin with `Sum` add the losses up instead, which is what the methods cost more than.
`methods-8` and `methods-64` call each method on the same matrix, of 8 × 24,960 and 64 × 4,096 numbers. Contenders take
turns as in `speed.py`, and results are compared first, except those of random methods, and of MGDA and Nash-MTL, for
which TorchJD does not return the solution. `memory` is the peak of the resident set above weights and inputs, over the
steps of `step-512`, each contender in a new process that has run `step-64` before.

UPGrad and DualProj are exact in all of them: TorchJD is told to add nothing to the Gramian (`norm_eps=0`,
`reg_eps=1e-12`). JAX has no UPGrad: there, it is a coordinate descent inside the compiled step.

Run: `python benchmarks/losses.py --peers`; `--only rows memory` for some parts.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import _measure
from _worker import ONE_THREAD, PYTHONS
from speed import STOCK, TOLERANCE, Expected, Found, Options, measure

PEERS = {"rows": ["torchjd", "jax"], "methods-8": ["torchjd"], "methods-64": ["torchjd"]}
PEERS |= dict.fromkeys(("gramian", "step-64", "step-512"), PEERS["rows"])
SUM, CALLS = f"Sum, {STOCK}", 12  # updates are played back after eight calls
OURS, THEIRS = "ours: ", "TorchJD: "
COMPILED = ("ours, rt.compile", "ours, tf.function", "ours, XLA")


class Goal(NamedTuple):
    """A ratio that we aim at: the best of some contenders against the best of others, by the start of their names."""

    ours: tuple[str, ...]
    others: tuple[str, ...]
    ratio: float


TITLES = {
    "rows": "Gradients of eight losses, MLP of 6 layers of 64",
    "gramian": "Inner products of these gradients",
    "step-64": "Step with UPGrad, 64 wide",
    "step-512": "Step with UPGrad, 512 wide",
    "methods-8": "Methods, 8 losses, 24,960 parameters",
    "methods-64": "Methods, 64 losses, 4,096 parameters",
    "memory": "Peak of a step with UPGrad, 512 wide",
}
GOALS = {
    "rows": [Goal(("ours",), (STOCK,), 0.17)],
    "gramian": [],
    "step-64": [Goal(("ours",), ("TorchJD",), 1.0), Goal(COMPILED, ("TorchJD",), 0.5)],
    "step-512": [Goal(("ours",), ("TorchJD",), 1.0), Goal(COMPILED, ("TorchJD",), 0.75)],
}
RANDOM = {"Random", "PCGrad", "GradVac", "GradDrop"}  # results cannot be compared
INEXACT = {"MGDA", "NashMTL"}  # what TorchJD returns is not the solution: how far it is from ours, is shown
OF_METHODS = 1e-3  # tolerance: TorchJD computes weights from a Gramian in single precision
HELD = {
    STOCK: "losses",
    SUM: "losses",
    "ours": "losses",
    "ours, gramian": "losses",
    "ours, rt.compile": "losses",
    "ours, tf.function": "losses",
    "TorchJD, mtl_backward": "torchjd",
    "TorchJD, mtl_backward, optimized": "torchjd",
    "TorchJD, autogram": "torchjd",
}


# ------------------------------------------------------------------ time


def expected(name: str) -> Expected:
    """Return whose results a contender must have.

    >>> expected("ours, XLA").contender, expected("Sum, torch").contender
    ('stock tape', 'Sum, stock tape')
    >>> expected("TorchJD: UPGrad"), expected("TorchJD: PCGrad").tolerance
    (Expected(contender='ours: UPGrad', tolerance=0.001), inf)
    """
    if name.startswith((OURS, THEIRS)):
        method = name.partition(": ")[2]
        return Expected(OURS + method, math.inf if method in RANDOM | INEXACT else OF_METHODS)
    return Expected(SUM if name.startswith("Sum") else STOCK)


def best(found: Mapping[str, Found], names: Sequence[str]) -> str | None:
    """Return the fastest of some contenders: those with a name, or with what it begins with before a comma.

    >>> times = {"ours": [3.0], "TorchJD, jac": [2.0], "TorchJD, autogram": [1.0]}
    >>> found = {name: Found([], 0.0, cpu, cpu) for name, cpu in times.items()}
    >>> best(found, ["TorchJD"]), best(found, ["ours"]), best(found, ["JAX"])
    ('TorchJD, autogram', 'ours', None)
    """
    wanted = [name for name in found if name in names]
    wanted = wanted or [name for name in found if name.partition(", ")[0] in names]
    return min(wanted, key=lambda name: statistics.median(found[name].cpu), default=None)


def show(work: str, threads: int, found: Mapping[str, Found]) -> None:
    stock, peer, rows = found[STOCK], best(found, ["TorchJD"]), []
    for name, one in found.items():
        row = [name, f"{statistics.median(one.cpu) * 1e3:.3f}", str(_measure.ratio(one.cpu, stock.cpu))]
        row += [str(_measure.ratio(one.cpu, found[peer].cpu))] if peer else []
        rows.append([*row, f"{one.first[0] * 1e3:.0f}", f"{one.difference:.0e}"])
    columns = ["", "CPU ms", "/ stock tape", *([f"/ {peer}"] if peer else []), "first call, ms", "difference"]
    _measure.table(f"{TITLES[work]}, {_threads(threads)}", columns, rows)


def show_methods(work: str, threads: int, found: Mapping[str, Found]) -> None:
    total, rows = found[f"{OURS}Sum"], []
    for name in (name.removeprefix(OURS) for name in found if name.startswith(OURS)):
        ours, theirs = found[OURS + name], found.get(THEIRS + name)
        row = [name, f"{statistics.median(ours.cpu) * 1e3:.3f}", _measure.short(_ratio(ours, total))]
        if theirs is not None:
            ratio = _measure.ratio(ours.cpu, theirs.cpu)
            row += [f"{statistics.median(theirs.cpu) * 1e3:.3f}", str(ratio), _measure.against(1.0, ratio.median)]
            row += ["" if name in RANDOM else f"{theirs.difference:.0e}"]
        rows.append(row)
    columns = ["", "ours, CPU ms", "/ Sum", "TorchJD, CPU ms", "ours / TorchJD", "goal", "difference"]
    shown = columns if any(len(row) > 3 for row in rows) else columns[:3]
    _measure.table(f"{TITLES[work]}, {_threads(threads)}", shown, rows)


def summarize(figures: Mapping[str, Mapping[str, Found]], threads: int) -> None:
    """Print each goal, with the contenders that were the best ones."""
    rows = []
    for work, found in figures.items():
        for goal in GOALS.get(work, ()):
            ours, other = best(found, goal.ours), best(found, goal.others)
            if ours is not None and other is not None:
                ratio = _measure.ratio(found[ours].cpu, found[other].cpu)
                rows.append([TITLES[work], ours, other, str(ratio), _measure.against(goal.ratio, ratio.median)])
    if rows:
        _measure.table(f"Summary, {_threads(threads)}", ["", "ours", "against", "ratio", "goal"], rows)


def _ratio(one: Found, other: Found) -> float:
    return _measure.ratio(one.cpu, other.cpu).median


def _threads(count: int) -> str:
    return "one thread" if count else "default threads"


# ------------------------------------------------------------------ memory


def peak_of(framework: str, contender: str) -> dict[str, float]:
    """Return the peak of some steps above what the model takes, in megabytes; and a loss, to compare."""
    module: Any = importlib.import_module(f"workloads.in_{framework}")
    module.limit_threads(1)

    def run(width: int) -> Callable[[], Any]:
        return module.steps(width, contender)[contender].run

    small = run(64)  # what is loaded and imported in the first steps is not counted
    for _ in range(CALLS):
        small()
    step = run(512)
    _measure.return_memory()
    before = _measure.status("VmRSS")
    _measure.reset_peak()
    for _ in range(CALLS):
        losses = step()
    return {"peak": _measure.status("VmHWM") - before, "loss": float(module.to_numpy(losses[0]))}


def show_memory(peers: bool, runs: int) -> dict[str, Any]:
    names = [name for name, framework in HELD.items() if peers or framework == "losses"]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(runs):
        for name, several in found.items():
            command = (__file__, "--child", HELD[name], name)
            several.append(_measure.in_process(*command, python=PYTHONS[HELD[name]], env=ONE_THREAD))
    middle = {name: _measure.medians(several) for name, several in found.items()}
    rows = []
    for name, one in middle.items():
        loss = middle[expected(name).contender]["loss"]
        assert abs(one["loss"] - loss) < TOLERANCE * loss, middle
        rows.append([name, f"{one['peak']:.1f}", _measure.short(one["peak"] / middle[STOCK]["peak"])])
    _measure.table(TITLES["memory"], ["", "MB", "/ stock tape"], rows)
    return found


# ------------------------------------------------------------------ all of it


def main() -> None:
    parser = _measure.options(__doc__)
    parser.add_argument("--peers", action="store_true", help="measure TorchJD and JAX too; see `make bench-peers`")
    parser.add_argument("--only", nargs="+", choices=TITLES, metavar="PART", help=", ".join(TITLES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1], help="1 (the default), or 0 for all")
    parser.add_argument("--rounds", type=int, default=15, help="turns that each contender takes (%(default)s)")
    parser.add_argument("--runs", type=int, default=2, help="processes of each contender, for memory (%(default)s)")
    given = parser.parse_args()
    options = Options(2 if given.quick else given.rounds, 0.0 if given.quick else _measure.BLOCK, CALLS)
    parts = given.only or (["rows", "step-64"] if given.quick else list(TITLES))
    figures: list[Any] = []
    for threads in given.threads[:1] if given.quick else given.threads:
        works = {}
        for work in (part for part in parts if part != "memory"):
            works[work] = measure(work, threads, options, ["losses", *(PEERS[work] if given.peers else [])], expected)
            (show_methods if work.startswith("methods") else show)(work, threads, works[work])
            figures += [_as_data(work, threads, name, one) for name, one in works[work].items()]
        summarize(works, threads)
    if "memory" in parts:
        figures.append({"work": "memory", **show_memory(given.peers, 1 if given.quick else given.runs)})
    _measure.write_json(given.json, figures)


def _as_data(work: str, threads: int, name: str, one: Found) -> dict[str, Any]:
    return {"work": work, "threads": threads or "default", "contender": name, **one._asdict()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        replies = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        os.write(replies, json.dumps(peak_of(*sys.argv[2:])).encode() + b"\n")
    else:
        main()
