"""Memory: what a tape holds after the forward pass, and the peak of a gradient through 200 layers.

Each contender has its own process, after a few warm-up steps, one thread. *Held* is what the tape holds between forward
pass and gradient: bytes that C++ has allocated and not freed, tensors above all, and the growth of the resident set.

A chain is `tanh(h @ w)`, 200 times: the long one (width 256, batch 4096) is mostly activations, the wide one (width
512, batch 256) mostly gradients. The peak is the resident set size above weights and input; the time is CPU time.

Run: `python benchmarks/kept.py`; `--only held`, `long` or `wide` for a part.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import _measure

LAYERS, SEGMENT, STEPS = 200, 10, 4
CHAINS = {"long": (256, 4096), "wide": (512, 256)}
CONTENDERS = {
    "long": ["stock", "recompute_grad", "ours", "ours, segments", "ours, leaves", "ours, disk"],
    "wide": ["stock", "recompute_grad", "ours", "ours, segments", "ours, streamed"],
}
# oneDNN has a pool that keeps what is freed, which hides what a tape takes. Without it, large tensors fragment the
# heap, which doubles the peak of a chain.
ONE_DNN = {"held": {"TF_ENABLE_ONEDNN_OPTS": "0"}, "chain": {"TF_ENABLE_ONEDNN_OPTS": "1"}}
HELD_GOAL = 0.6  # of what the stock tape holds
CHAIN_GOALS = {"long": {"ours": "peak ≤ 1, time ≤ 1", "ours, segments": "≤ 160 MB, time ≤ 1.25"}}


# ------------------------------------------------------------------ in the process of a contender


def held(model: str, kind: str) -> dict[str, float]:
    """Measure what a tape holds after the forward pass of a model."""
    import tensorflow as tf
    from workloads import tensorflow_models

    import retrotape as rt

    _measure.one_thread()
    params, loss = tensorflow_models.make(model)
    tape_type = rt.Tape if kind == "ours" else tf.GradientTape

    def record() -> tuple[Any, Any]:
        with tape_type() as tape:
            value = loss()
        return tape, value

    def step() -> None:
        tape, value = record()
        tape.gradient(value, params)

    for _ in range(5):
        step()
    _measure.return_memory()
    before = _measure.allocated(), _measure.status("VmRSS")
    recorded = record()
    after = _measure.allocated(), _measure.status("VmRSS")
    del recorded
    return {"allocated": after[0] - before[0], "resident": after[1] - before[1]}


def chain_step(contender: str, weights: list[Any], x: Any) -> Callable[[], float]:
    """Return a step that computes the gradient of a chain, and returns the norm of its first part."""
    import tensorflow as tf

    import retrotape as rt

    def run(h: Any, part: list[Any]) -> Any:
        for weight in part:
            h = tf.tanh(tf.matmul(h, weight))
        return h

    def recomputed(h: Any) -> Any:
        for start in range(0, LAYERS, SEGMENT):
            part = weights[start : start + SEGMENT]
            h = tf.recompute_grad(lambda h, part=part: run(h, part))(h)
        return h

    kind, _, how = contender.partition(", ")

    def make_tape() -> Any:
        if kind != "ours":
            return tf.GradientTape()
        return rt.Tape(keep=how if how in ("segments", "leaves", "disk") else "needed")

    def step() -> float:
        with make_tape() as tape:
            end = recomputed(x) if contender == "recompute_grad" else run(x, weights)
            loss = tf.reduce_mean(tf.square(end))
        if how == "streamed":
            return [float(tf.norm(grad)) for _, grad in tape.stream(loss, weights)][-1]
        return float(tf.norm(tape.gradient(loss, weights)[0]))

    return step


def chain(name: str, contender: str) -> dict[str, float]:
    """Measure the peak memory and the time of a gradient through a chain."""
    import numpy as np
    import tensorflow as tf

    _measure.one_thread()
    (width, batch), rng = CHAINS[name], np.random.default_rng(7)
    scale = np.float32(width**-0.5)
    weights = [tf.Variable(rng.standard_normal((width, width), np.float32) * scale) for _ in range(LAYERS)]
    step = chain_step(contender, weights, tf.constant(rng.standard_normal((batch, width), np.float32)))
    _measure.return_memory()
    before, times = _measure.status("VmRSS"), []
    _measure.reset_peak()
    norm = step()
    for _ in range(STEPS):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    # The peak of all steps, because what one step leaves behind adds to the next.
    return {"peak": _measure.status("VmHWM") - before, "seconds": statistics.median(times), "norm": norm}


# ------------------------------------------------------------------ all of them


def in_child(part: str, *args: str) -> dict[str, float]:
    return _measure.in_process(__file__, "--child", part, *args, env=ONE_DNN[part])


def show_held(runs: int) -> dict[str, Any]:
    figures, rows = {}, []
    for model in ("cnn", "transformer"):
        stock, ours = (
            _measure.medians([in_child("held", model, kind) for _ in range(runs)]) for kind in ("stock", "ours")
        )
        figures[model] = {"stock": stock, "ours": ours}
        for part in stock:
            goal = _measure.against(HELD_GOAL, ours[part] / stock[part])
            ratio = _measure.short(ours[part] / stock[part])
            rows.append([f"{model}, {part}", f"{stock[part]:.1f}", f"{ours[part]:.1f}", ratio, goal])
    _measure.table("Megabytes held after the forward pass", ["", "stock", "ours", "ours / stock", "goal"], rows)
    return figures


def show_chain(name: str, runs: int, contenders: list[str]) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {contender: [] for contender in contenders}
    for _ in range(runs):
        for contender, several in found.items():
            several.append(in_child("chain", name, contender))
    middle = {contender: _measure.medians(several) for contender, several in found.items()}
    stock, rows = middle["stock"], []
    for contender, one in middle.items():
        assert abs(one["norm"] - stock["norm"]) < 1e-4 * stock["norm"], middle
        row = [contender, _measure.short(one["seconds"] / stock["seconds"]), f"{one['peak']:.0f}"]
        goal = CHAIN_GOALS.get(name, {}).get(contender, "")
        rows.append([*row, _measure.short(one["peak"] / stock["peak"]), goal])
    width, batch = CHAINS[name]
    title = f"{LAYERS} layers, width {width}, batch {batch}; stock: {stock['seconds']:.1f} s"
    _measure.table(title, [name, "time / stock", "peak MB", "peak / stock", "goal"], rows)
    return found


def main() -> None:
    parser = _measure.options(__doc__)
    parser.add_argument("--only", nargs="+", choices=["held", *CHAINS], help="parts to run")
    given = parser.parse_args()
    runs, figures = (1 if given.quick else 3), {}
    for part in given.only or (["held"] if given.quick else ["held", *CHAINS]):
        contenders = CONTENDERS.get(part, [])
        figures[part] = show_held(runs) if part == "held" else show_chain(part, runs, contenders)
    _measure.write_json(given.json, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        measure = {"held": held, "chain": chain}[sys.argv[2]]
        print(json.dumps(measure(*sys.argv[3:])))
    else:
        main()
