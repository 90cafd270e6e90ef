"""Whether gradients of several tapes are computed faster in parallel threads than one after the other.

Wall time, because CPU time would hide the gain of threads; once with TensorFlow's default threads and once with one
thread per op, each in its own process. Run: `python benchmarks/parallel.py`
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import _measure

SETTINGS = {"default": "default threads", "one": "one thread per op"}


def small(count: int = 16, width: int = 16, batch: int = 8) -> list[Callable[[], Any]]:
    """Return the losses of small sub-models that share a variable."""
    import tensorflow as tf

    shared, x = tf.Variable(tf.random.normal((width, width), stddev=0.25)), tf.random.normal((batch, width))

    def sub_model() -> Callable[[], Any]:
        own = tf.Variable(tf.random.normal((width, width), stddev=0.25))
        return lambda: tf.reduce_mean(tf.tanh(tf.tanh(x @ shared) @ own) ** 2)

    return [sub_model() for _ in range(count)]


def times(losses: list[Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Return the minimum seconds of each method, since other work on the machine only adds; recording is not timed."""
    import retrotape as rt

    ways = {"in turn": False, "threads": True, "chosen": None}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeat):
        for way, parallel in ways.items():
            tapes, values = [], []
            for loss in losses:
                with rt.Tape() as tape:
                    values.append(loss())
                tapes.append(tape)
            gc.collect(0)
            start = time.perf_counter()
            grads = rt.backward_all(tapes, values, parallel=parallel)
            found[way].append(time.perf_counter() - start)
            del grads
    return {way: min(seconds) for way, seconds in found.items()}


def child(setting: str) -> None:
    """Print the times under one setting, as JSON."""
    from workloads import in_keras as models

    if setting == "one":
        _measure.one_thread()
    wide = [models.mlp(2048, 4, 256).loss for _ in range(4)]
    nets = [models.cnn().loss for _ in range(4)]
    print(json.dumps({"16 small": times(small(), 41), "4 wide MLPs": times(wide, 13), "4 CNNs": times(nets, 25)}))


def main() -> None:
    rows = []
    for setting, name in SETTINGS.items():
        command = [sys.executable, __file__, "--child", setting]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        for tapes, found in json.loads(output.splitlines()[-1]).items():
            ratios = [found[way] / found["in turn"] for way in ("threads", "chosen")]
            rows.append(
                [f"{tapes}, {name}", *(f"{1000.0 * seconds:.1f}" for seconds in found.values())]
                + [f"{ratio:.2f}" for ratio in ratios]
            )
    columns = ["tapes", "in turn", "threads", "chosen", "threads / in turn", "chosen / in turn"]
    _measure.table("Milliseconds for the gradients of all tapes", columns, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
