"""Short scripts: the first five steps of a process that has just started.

Each run is a new process with one model, under the stock tape or under ours; both take turns, and shown is the median
over runs. CPU milliseconds of each step, with a fresh tape, one thread. Whatever the library does to be fast later,
such as compiling, is in these steps; importing it is not (`imports.py`).

Run: `python benchmarks/start.py`
"""

from __future__ import annotations

import json
import sys
import time

import _measure

STEPS = 5
MODELS = ("mlp", "cnn", "transformer")
GOALS = {"step 3": 1.0, "total": 1.05}


def child(model: str, kind: str) -> None:
    """Print the CPU seconds of each step."""
    import tensorflow as tf
    from workloads import tensorflow_models

    import retrotape as rt

    _measure.one_thread()
    params, loss = tensorflow_models.make(model)
    tape_type = rt.Tape if kind == "ours" else tf.GradientTape
    times = []
    for _ in range(STEPS):
        start = time.process_time()
        with tape_type() as tape:
            value = loss()
        tape.gradient(value, params)
        times.append(time.process_time() - start)
    print(json.dumps({**{f"step {step}": t for step, t in enumerate(times, 1)}, "total": sum(times)}))


def main() -> None:
    given = _measure.options(__doc__).parse_args()
    figures, rows = {}, []
    for model in MODELS[:1] if given.quick else MODELS:
        runs: dict[str, list[dict[str, float]]] = {"stock": [], "ours": []}
        for _ in range(1 if given.quick else 7):
            for kind, found in runs.items():
                found.append(_measure.in_process(__file__, model, kind))
        figures[model] = runs
        middle = {kind: _measure.medians(found) for kind, found in runs.items()}
        for part in middle["stock"]:
            ratio = _measure.ratio(*([run[part] for run in runs[kind]] for kind in ("ours", "stock")))
            times = [f"{middle[kind][part] * 1e3:.1f}" for kind in runs]
            rows.append([f"{model}, {part}", *times, str(ratio), _measure.against(GOALS.get(part), ratio.median)])
    _measure.table("CPU milliseconds in a new process", ["", "stock", "ours", "ours / stock", "goal"], rows)
    _measure.write_json(given.json, figures)


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] in MODELS:
        child(*sys.argv[1:])
    else:
        main()
