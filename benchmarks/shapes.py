"""A loop with a new batch size in every step, where nothing that was compiled before fits.

Ours as it is, against ours with `RETROTAPE_COMPILE=0`, which compiles nothing, in processes that take turns; the ratio
says what is lost by trying. The stock tape is beside them. CPU time, one thread; making batches is not timed.

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
CONTENDERS = {STOCK: (STOCK, {}), "not compiled": ("ours", {"RETROTAPE_COMPILE": "0"}), "ours": ("ours", {})}


def measure(model: str, rounds: int, calls: int, times: dict[str, list[float]]) -> None:
    """Let three new processes take turns, and add what they measure to `times`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = {}
        for name, (contender, env) in CONTENDERS.items():
            running[name] = stack.enter_context(Worker("tensorflow", "shapes", 1, model, env=env))
            running[name].first(contender, folder / f"{name}.npz")
        with np.load(folder / f"{STOCK}.npz") as expected, np.load(folder / "ours.npz") as result:
            assert difference(dict(result), dict(expected)) < 1e-4
        order = list(running)
        for _ in range(rounds):
            for name in order:
                times.setdefault(name, []).append(running[name].block(CONTENDERS[name][0], calls).cpu)
            order.reverse()


def main() -> None:
    given = _measure.options(__doc__).parse_args()
    figures, rows = {}, []
    works = {"mlp": (1, 2, 5)} if given.quick else {"mlp": (5, 10, 10), "transformer": (5, 10, 3)}
    for model, (processes, rounds, calls) in works.items():
        found: dict[str, list[float]] = {}
        figures[model] = found
        for _ in range(processes):  # the layout of memory differs from process to process
            measure(model, rounds, calls, found)
        ratio = _measure.ratio(found["ours"], found["not compiled"])
        row = [model, *(f"{statistics.median(found[name]) * 1e3:.1f}" for name in CONTENDERS), str(ratio)]
        rows.append([*row, _measure.against(GOAL, ratio.median), str(_measure.ratio(found["ours"], found[STOCK]))])
    columns = ["", "stock", "not compiled", "ours", "ours / not compiled", "goal", "ours / stock"]
    _measure.table("CPU milliseconds of a step with a new batch size", columns, rows)
    _measure.write_json(given.json, figures)


if __name__ == "__main__":
    main()
