"""Time and peak memory of a gradient through 200 layers, each contender in its own process.

Two chains of `tanh(h @ w)`: a wide one (width 512, batch 256), where gradients are most of the memory, and a long one
(width 256, batch 4096), where activations are. The peak is the resident set size above weights and input; the time is
CPU time, median of several steps. Run: `python benchmarks/chains.py`
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time

import _measure

LAYERS, SEGMENT = 200, 10
CHAINS = {"wide": (512, 256), "long": (256, 4096)}
CONTENDERS = {
    "wide": ["stock", "recompute_grad", "ours", "ours, streamed", "ours, segments"],
    "long": ["stock", "recompute_grad", "ours", "ours, segments", "ours, leaves", "ours, disk"],
}
ROUNDS, STEPS = 3, 4


def status(field: str) -> float:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def child(chain: str, contender: str) -> None:
    """Print the peak memory of several steps, and their time."""
    import numpy as np
    import tensorflow as tf

    import retrotape as rt

    _measure.one_thread()
    width, batch = CHAINS[chain]
    rng = np.random.default_rng(7)
    scale = np.float32(width**-0.5)
    weights = [tf.Variable(rng.standard_normal((width, width), np.float32) * scale) for _ in range(LAYERS)]
    x = tf.constant(rng.standard_normal((batch, width), np.float32))

    def run(h: tf.Tensor, part: list[tf.Variable]) -> tf.Tensor:
        for weight in part:
            h = tf.tanh(tf.matmul(h, weight))
        return h

    def forward() -> tf.Tensor:
        if contender != "recompute_grad":
            return tf.reduce_mean(tf.square(run(x, weights)))
        h = x
        for start in range(0, LAYERS, SEGMENT):
            part = weights[start : start + SEGMENT]
            h = tf.recompute_grad(lambda h, part=part: run(h, part))(h)
        return tf.reduce_mean(tf.square(h))

    def step() -> float:
        name, _, how = contender.partition(", ")
        if name != "ours":
            with tf.GradientTape() as tape:
                loss = forward()
            grads = tape.gradient(loss, weights)
            return float(tf.norm(grads[0]))
        with rt.Tape(keep=how if how in ("segments", "leaves", "disk") else "needed") as tape:
            loss = forward()
        if how == "streamed":
            return [float(tf.norm(grad)) for _, grad in tape.stream(loss, weights)][-1]
        return float(tf.norm(tape.gradient(loss, weights)[0]))

    gc.collect()
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as reset:  # do not count the peak so far
        reset.write("5")
    first = step()
    times = []
    for _ in range(STEPS):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    peak = status("VmHWM") - before  # over all steps, because what one step leaves behind adds to the next
    print(json.dumps({"peak": peak, "seconds": statistics.median(times), "norm": first}))


def measure(chain: str, contender: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", chain, contender]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ).stdout
    return json.loads(output.splitlines()[-1])


def main(chains: list[str]) -> None:
    for chain in chains:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS[chain]}
        for _ in range(ROUNDS):
            for name, found in runs.items():
                found.append(measure(chain, name))
        middle = {
            name: {key: statistics.median(run[key] for run in found) for key in found[0]}
            for name, found in runs.items()
        }
        stock = middle["stock"]
        rows = [
            [name, f"{m['seconds'] / stock['seconds']:.2f}", f"{m['peak']:.0f}", f"{m['peak'] / stock['peak']:.2f}"]
            for name, m in middle.items()
        ]
        assert all(abs(m["norm"] - stock["norm"]) < 1e-4 * stock["norm"] for m in middle.values()), middle
        width, batch = CHAINS[chain]
        title = f"200 layers, width {width}, batch {batch}: {stock['seconds']:.1f} s"
        _measure.table(title, [chain, "time / stock", "peak MB", "peak / stock"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main(sys.argv[1:] or list(CHAINS))
