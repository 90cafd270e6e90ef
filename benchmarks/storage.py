"""A saved gradient computation: saving it, loading it in a new process, the first gradient there, and later ones.

Ours: `tape.save`, `rt.load`, `tape.gradient`. SavedModel: a `tf.Module` with a traced gradient function. With
`--peers`, `jax.export` with its vjp and `torch.export`. All files contain the weights and data of one step, and are
loaded without the model's code. The row `wait=False` has the time that `tape.save(..., wait=False)` takes before it
returns.

Each run of a contender is a new process, one thread, and contenders take turns. CPU milliseconds, median over runs;
ratios are those of one turn, with quartiles. Gradients are compared with those of the SavedModel.

Run: `python benchmarks/storage.py`; `--only mlp` for some models.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import _measure
import numpy as np
from _worker import ONE_THREAD, PYTHONS, difference

MODELS, BLOCKS = ("mlp", "cnn", "transformer"), 9
REFERENCE = "SavedModel"


class Contender(NamedTuple):
    """Its functions in `workloads.saved`, and its framework."""

    save: str
    load: str
    framework: str


CONTENDERS = {
    REFERENCE: Contender("save_savedmodel", "load_savedmodel", "tensorflow"),
    "ours": Contender("save_ours", "load_ours", "tensorflow"),
    "wait=False": Contender("save_in_background", "", "tensorflow"),
    "jax.export": Contender("save_jax", "load_jax", "jax"),
    "torch.export": Contender("save_torch", "load_torch", "torch"),
}


# ------------------------------------------------------------------ in a new process


def save(name: str, model: str, path: Path) -> dict[str, float]:
    """Save twice, and time the second time."""
    from workloads import saved

    found = getattr(saved, CONTENDERS[name].save)(model, path)
    if name != "wait=False":
        found()
    start = time.process_time()
    found()
    seconds = time.process_time() - start
    saved.GATE.set()
    return {"save": seconds}


def load(name: str, path: Path, result: Path) -> dict[str, float]:
    """Load, and compute gradients."""
    from workloads import saved

    contender, start = CONTENDERS[name], time.process_time()
    framework = importlib.import_module(f"workloads.in_{contender.framework}")
    framework.limit_threads(1)
    if name == "ours":
        importlib.import_module("retrotape.tape.loaded")  # otherwise imported on first use, which is not loading
    imported = time.process_time()
    compute = getattr(saved, contender.load)(path)
    loaded = time.process_time()
    found = compute()
    times = {"import": imported - start, "load": loaded - imported, "first": time.process_time() - loaded}
    np.savez(result, **{key: framework.to_numpy(value) for key, value in found.items()})
    calls = _measure.calls_per_block(_measure.cpu_seconds(compute, 4))
    later = [_measure.cpu_seconds(compute, calls) for _ in range(BLOCKS)]
    return {**times, "load + first": times["load"] + times["first"], "later": statistics.median(later)}


# ------------------------------------------------------------------ all of them


def run(name: str, *args: object) -> dict[str, float]:
    env = {**ONE_THREAD, "JAX_PLATFORMS": "cpu"}
    return _measure.in_process(__file__, "--child", *args, python=PYTHONS[CONTENDERS[name].framework], env=env)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(model: str, names: list[str], runs: int) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each run of each contender."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                path, result = Path(folder, name), Path(folder, f"{name}.npz")
                path.mkdir()
                times = run(name, "save", name, model, path) | {"kB": size_of(path) / 1e3}
                found[name].append(times)
                if not CONTENDERS[name].load:
                    continue
                times |= run(name, "load", name, path, result)
                with np.load(result) as mine, np.load(Path(folder, f"{REFERENCE}.npz")) as expected:
                    apart = difference(dict(mine), dict(expected))
                assert apart < 1e-4, f"{name}: {model} differs by {apart:.1e}"
    return found


def show(model: str, found: dict[str, list[dict[str, float]]]) -> None:
    rows = []
    for name, runs in found.items():
        middle = _measure.medians(runs)
        row = [name, f"{middle['kB']:,.0f}"]
        row += [f"{middle[part] * 1e3:,.1f}" for part in ("save", "import", "load", "first", "later") if part in middle]
        for part in ("load + first", "later"):
            if part in middle:
                row.append(str(_measure.ratio([one[part] for one in runs], [one[part] for one in found[REFERENCE]])))
        rows.append(row)
    columns = ["", "kB", "save", "import", "load", "first", "later", "load + first / SavedModel's", "later / its"]
    _measure.table(f"{model}: CPU milliseconds; goal: ours / SavedModel's ≤ 1", columns, rows)


def main() -> None:
    parser = _measure.options(__doc__)
    parser.add_argument("--peers", action="store_true", help="measure JAX and PyTorch too; see `make bench-peers`")
    parser.add_argument("--only", nargs="+", choices=MODELS, help="models to measure")
    parser.add_argument("--runs", type=int, default=5, help="processes of each contender (%(default)s)")
    given = parser.parse_args()
    names = [name for name, one in CONTENDERS.items() if given.peers or one.framework == "tensorflow"]
    figures: dict[str, Any] = {}
    for model in given.only or (MODELS[:1] if given.quick else MODELS):
        figures[model] = measure(model, names, 1 if given.quick else given.runs)
        show(model, figures[model])
    _measure.write_json(given.json, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        role, name, *args = sys.argv[2:]
        replies = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        times = save(name, args[0], Path(args[1])) if role == "save" else load(name, *map(Path, args))
        os.write(replies, json.dumps(times).encode() + b"\n")
    else:
        main()
