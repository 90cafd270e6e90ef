"""How cost grows with ops, parameters, tapes and workers, with fitted exponents and a picture.

Each axis is varied alone, one process each, CPU seconds. The shards of many workers are written by one process, in the
same form as real workers write them: what is measured is the work of whoever loads them.

Run: `python benchmarks/scale.py`, `--json FILE` for the figures, `--picture FILE` for the picture in `docs/scale.md`;
`--quick` for small sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _measure

SIZES = {
    "ops": (1_000, 4_000, 16_000, 64_000),
    "parameters": (10_000, 160_000, 2_560_000, 40_960_000),
    "tapes": (16, 64, 256, 1024),
    "workers": (2, 8, 32, 128),
}
QUICK = {
    "ops": (200, 400),
    "parameters": (10_000, 40_000),
    "tapes": (4, 8),
    "workers": (2, 4),
}
RUN = "0123456789abcdef" * 2
Times = dict[str, float]


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = run()
    return time.process_time() - start, found


# ------------------------------------------------------------------ the four axes


def with_ops(count: int, folder: Path) -> Times:
    """A chain of small ops."""
    import tensorflow as tf

    import retrotape as rt

    w = tf.Variable(tf.ones([8]), name="w")

    def record() -> Any:
        with rt.Tape() as tape:
            h = w * 1.0
            for number in range(count // 2):
                h = tf.sin(h) if number % 2 else h * 1.01
                h = h + w
            return tape, tf.reduce_sum(h)

    recording, (tape, loss) = seconds(record)
    gradient, _ = seconds(lambda: tape.gradient(loss, w))
    saving, _ = seconds(lambda: tape.save(folder / "a.tape", {"loss": loss}))
    loading, loaded = seconds(lambda: rt.load(folder / "a.tape"))
    again, _ = seconds(lambda: loaded.gradient("loss", "w"))
    return {"record": recording, "gradient": gradient, "save": saving, "load": loading, "loaded gradient": again}


def with_parameters(count: int, folder: Path) -> Times:
    """One step of a model with one matrix of this size."""
    import tensorflow as tf

    import retrotape as rt

    side = math.isqrt(count)
    w, x = tf.Variable(tf.ones([side, side]), name="w"), tf.ones([8, side])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.tanh(x @ w))
    gradient, _ = seconds(lambda: tape.gradient(loss, w))
    saving, _ = seconds(lambda: tape.save(folder / "a.tape", {"loss": loss}))
    loading, loaded = seconds(lambda: rt.load(folder / "a.tape"))
    again, _ = seconds(lambda: loaded.gradient("loss", "w"))
    return {"gradient": gradient, "save": saving, "load": loading, "loaded gradient": again}


def with_tapes(count: int, folder: Path) -> Times:
    """The sum of the gradients of many small tapes."""
    import tensorflow as tf

    import retrotape as rt

    w = tf.Variable(tf.ones([16, 16]), name="w")
    for number in range(count):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.ones([4, 16]) * (number + 1.0) @ w))
        tape.save(folder / f"{number:05d}.tape", {"loss": loss})
    found, _ = seconds(lambda: rt.farm.backward(str(folder / "*.tape"), "loss", "w", progress=False))
    return {"farm.backward": found}


def with_workers(count: int, folder: Path) -> Times:
    """The tape of a job whose workers took two steps, with six mirrored variables."""
    import retrotape as rt

    bytes_of_one = write_shards(count, folder)
    loading, whole = seconds(lambda: rt.load(folder))
    gradient, _ = seconds(lambda: whole.gradient("loss", "w0"))
    through, _ = seconds(lambda: whole.gradient("loss", "w0", through_updates=True))
    return {"load": loading, "gradient": gradient, "through updates": through, "MB of a shard": bytes_of_one / 1e6}


def write_shards(count: int, folder: Path) -> int:
    """Write the shards of a job, all by this process; return the size of one."""
    import tensorflow as tf

    import retrotape as rt
    from retrotape.files import store
    from retrotape.record import current_stack

    files = []
    for worker in range(count):
        ws = [tf.Variable(tf.ones([32, 32]) * 0.1, name=f"w{number}") for number in range(6)]
        with rt.Tape() as tape:
            x = tf.random.stateless_normal([16, 32], [worker, 1])
            for _ in range(2):
                h = x
                for w in ws:
                    h = tf.tanh(h @ w)
                for w, grad in zip(ws, tape.gradient(tf.reduce_sum(h), ws), strict=True):
                    w.assign_sub(0.01 * all_reduce(current_stack(), grad, count))
            h = x
            for w in ws:
                h = tf.tanh(h @ w)
            loss = all_reduce(current_stack(), tf.reduce_sum(h), count)
        snapshot = tape._snapshot(tape._eager("save"), {"loss": loss})
        flags = {key: one._replace(mirrored=True) for key, one in snapshot.flags.items()}
        shard = {"run": RUN, "worker": worker, "workers": count}
        prepared = snapshot._replace(flags=flags).prepare().with_fields({"features": ["shards"], "shard": shard})
        path = folder / store.shard_name(worker, count, RUN)
        prepared.write(path, overwrite=True, store_in=None)
        files.append(store.describe_file(str(path)))
    store.write_manifest(str(folder), store.Manifest(RUN, tuple(files)))
    return files[0].bytes


def all_reduce(stack: Any, value: Any, workers: int) -> Any:
    """Record an all-reduce; that its result is the value of one worker does not change what it costs to join."""
    import tensorflow as tf

    return stack.on_all_reduce("SUM", workers, [[value]], lambda: [tf.zeros_like(value)])[0]


AXES: dict[str, Callable[[int, Path], Times]] = {
    "ops": with_ops,
    "parameters": with_parameters,
    "tapes": with_tapes,
    "workers": with_workers,
}


# ------------------------------------------------------------------ figures


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope of the logarithms over the larger half of the sizes: 1 is linear.

    >>> round(exponent([1, 10, 100], [2.0, 20.0, 200.0]), 6)
    1.0
    """
    half = max(2, (len(sizes) + 1) // 2)
    xs, ys = [math.log(one) for one in sizes[-half:]], [math.log(max(one, 1e-9)) for one in values[-half:]]
    mean_x, mean_y = sum(xs) / half, sum(ys) / half
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)


def measure(sizes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axis, run in AXES.items():
        rows: dict[str, list[float]] = {}
        for size in sizes[axis]:
            with tempfile.TemporaryDirectory() as folder:
                for stage, value in run(size, Path(folder)).items():
                    rows.setdefault(stage, []).append(value)
        fitted = {stage: exponent(list(sizes[axis]), values) for stage, values in rows.items()}
        found[axis] = {"sizes": list(sizes[axis]), "seconds": rows, "exponents": fitted}
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, plots = plt.subplots(1, len(found), figsize=(4 * len(found), 3.6), layout="constrained")
    for plot, (axis, about) in zip(plots, found.items(), strict=True):
        for stage, values in about["seconds"].items():
            if not stage.startswith("MB"):
                label = f"{stage} (n^{about['exponents'][stage]:.2f})"
                plot.loglog(about["sizes"], values, marker="o", label=label)
        plot.set(xlabel=axis, ylabel="CPU seconds" if axis == "ops" else "")
        plot.grid(alpha=0.3)
        plot.legend(fontsize=7)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    _measure.one_thread()
    measure({axis: sizes[:1] for axis, sizes in QUICK.items()})  # first calls are slower
    found = measure(QUICK if given.quick else SIZES)
    for axis, about in found.items():
        rows = [
            [stage, *(f"{value:.3f}" for value in values), f"{about['exponents'][stage]:.2f}"]
            for stage, values in about["seconds"].items()
        ]
        _measure.table(f"{axis}: CPU seconds", [axis, *(f"{size:,}" for size in about["sizes"]), "exponent"], rows)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    if given.picture:
        draw(found, given.picture)


if __name__ == "__main__":
    main()
