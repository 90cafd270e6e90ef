"""Memory that a tape holds after the forward pass, and the peak of forward pass and gradient, each in its own process.

A deep MLP: 20 layers of width 2048, batch 512. Run: `python benchmarks/memory.py`
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import subprocess
import sys

import _measure

LAYERS, WIDTH, BATCH = 20, 2048, 512
MEGA = 2**20


def resident() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MEGA


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(kind: str, activation: str) -> None:
    """Print the held and the peak memory of one tape, in megabytes above the model and its input."""
    import tensorflow as tf

    import retrotape as rt

    _measure.one_thread()
    layers = [tf.keras.layers.Dense(WIDTH, activation) for _ in range(LAYERS)]
    model = tf.keras.Sequential([tf.keras.Input((WIDTH,)), *layers])
    x = tf.random.normal((BATCH, WIDTH))
    model(x)
    with (rt.Tape if kind == "ours" else tf.GradientTape)() as warm:  # do not measure lazy initialization
        small = tf.reduce_sum(model.layers[0](x[:1]))
    warm.gradient(small, model.layers[0].trainable_variables)
    del warm, small
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # free memory in the heap would hide what the tape takes
    base = resident()
    with (rt.Tape if kind == "ours" else tf.GradientTape)() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    held = resident() - base
    grads = tape.gradient(loss, model.trainable_variables)
    print(json.dumps({"held": held, "peak": peak() - base, "gradients": len(grads)}))


def measure(kind: str, activation: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", kind, activation]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    rows = []
    for activation in ("relu", "tanh"):
        stock, ours = measure("stock", activation), measure("ours", activation)
        rows += [
            [f"{activation}, {key}", f"{stock[key]:.0f}", f"{ours[key]:.0f}", f"{ours[key] / stock[key]:.2f}"]
            for key in ("held", "peak")
        ]
    _measure.table("Megabytes above the model", ["deep MLP", "stock", "ours", "ratio"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
