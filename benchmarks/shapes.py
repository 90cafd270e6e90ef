"""A loop with a new batch size in every step, where nothing that was compiled before fits.

Ours as it is, against ours with `RETROTAPE_COMPILE=0`, which compiles nothing, in two processes that take turns; the
ratio says what is lost by trying. The stock tape is beside them. CPU time, one thread; making batches is not timed.

Run: `python benchmarks/shapes.py`
"""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

import _measure
import numpy as np
from _worker import Worker, difference

GOAL = 1.05
STOCK = "stock tape"
WITHOUT = {"RETROTAPE_COMPILE": "0"}


def measure(model: str, rounds: int, calls: int) -> _measure.Rounds:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        usual = stack.enter_context(Worker("tensorflow", "shapes", 1, model))
        without = stack.enter_context(Worker("tensorflow", "shapes", 1, model, env=WITHOUT))
        running = {STOCK: (without, STOCK), "not compiled": (without, "ours"), "ours": (usual, "ours")}
        times: dict[str, list[float]] = {name: [] for name in running}
        for name, (worker, contender) in running.items():
            worker.first(contender, folder / f"{name}.npz")
        with np.load(folder / f"{STOCK}.npz") as expected, np.load(folder / "ours.npz") as result:
            assert difference(dict(result), dict(expected)) < 1e-4
        for _ in range(rounds):
            for name, (worker, contender) in running.items():
                times[name].append(worker.block(contender, calls).cpu)
    return times


def main() -> None:
    given = _measure.options(__doc__).parse_args()
    figures, rows = {}, []
    works = {"mlp": (2, 5)} if given.quick else {"mlp": (25, 10), "transformer": (25, 3)}
    for model, (rounds, calls) in works.items():
        found = figures[model] = measure(model, rounds, calls)
        ratio = _measure.ratio(found["ours"], found["not compiled"])
        row = [model, *(f"{statistics.median(times) * 1e3:.1f}" for times in found.values()), str(ratio)]
        rows.append([*row, _measure.against(GOAL, ratio.median), str(_measure.ratio(found["ours"], found[STOCK]))])
    columns = ["", "stock", "not compiled", "ours", "ours / not compiled", "goal", "ours / stock"]
    _measure.table("CPU milliseconds of a step with a new batch size", columns, rows)
    _measure.write_json(given.json, figures)


if __name__ == "__main__":
    main()
