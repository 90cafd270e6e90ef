"""How time and memory grow with the length of a tape, from recording to `retrotape show`.

Each program runs with 37,500, 75,000, 150,000 and 300,000 ops. Recording with its queries, queries on the saved file,
and two commands run in separate processes. Seconds are CPU seconds; the peak is the resident set size above that after
the imports. The exponent is fitted to the logarithms over all sizes: 1 is linear.

Run: `python benchmarks/lengths.py`, or for some programs and other sizes
`python benchmarks/lengths.py constants --ops 5000 10000`.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import _measure

SIZES = (37_500, 75_000, 150_000, 300_000)
Figures = dict[str, dict[str, float]]  # stage → seconds, peak


def status(field: str) -> float:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


class Clock:
    """Measures stages of this process."""

    def __init__(self) -> None:
        self.figures: Figures = {}
        gc.collect()
        self._base = status("VmRSS")

    def __call__(self, stage: str, run: Callable[[], Any]) -> Any:
        """Run a stage, and store its CPU seconds and its peak."""
        with open("/proc/self/clear_refs", "w") as reset:  # do not count the peak of earlier stages
            reset.write("5")
        start = time.process_time()
        found = run()
        seconds = time.process_time() - start
        self.figures[stage] = {"seconds": seconds, "peak": status("VmHWM") - self._base}
        return found


# ------------------------------------------------------------------ programs: a target and a source, after `count` ops


def constants(count: int) -> tuple[Any, Any]:
    """One chain; every op takes a Python number, which becomes a separate constant tensor."""
    import tensorflow as tf

    w = tf.Variable(1.0)
    h = w * 1.0
    for number in range(count - 2):
        h = h * (1.0 + 1e-9 * number) if number % 2 else h + 1e-9 * number
    return h, w


def variables(count: int) -> tuple[Any, Any]:
    """One variable for every 30 ops, each read, assigned, and read by Python again and again."""
    import tensorflow as tf

    w = tf.Variable(1.0)
    many = [tf.Variable(1.0, name=f"v{number}") for number in range(count // 30)]
    h, ops = w * 1.0, len(many) + 2
    while ops < count:
        v = many[ops % len(many)]
        h = h + v * 1e-6  # a read and two ops
        v.assign(h)
        if float(h) > 2.0:
            h = h * 0.5
        ops += 4
    return h, w


def one_variable(count: int) -> tuple[Any, Any]:
    """One variable that is assigned at every third op."""
    import tensorflow as tf

    w, v = tf.Variable(1.0), tf.Variable(1.0)
    h = w * 1.0
    for _ in range(count // 3):
        v.assign(v * 1.0)
    return v * h, w


def calls(count: int) -> tuple[Any, Any]:
    """Calls of a function, a custom gradient and a layer, each of a few ops."""
    import keras
    import tensorflow as tf

    w = tf.Variable(1.0)
    layer = keras.layers.Activation("linear")
    step = tf.function(lambda a: tf.sin(a) * w * 1e-6 + a)

    @tf.custom_gradient
    def clipped(a: Any) -> Any:
        return a * 1.0, lambda grad: tf.clip_by_value(grad, -1.0, 1.0)

    h = w * 1.0
    for _ in range(count // 8):
        h = layer(clipped(step(h))) + 1e-6
    return h, w


PROGRAMS = {one.__name__: one for one in (constants, variables, one_variable, calls)}


# ------------------------------------------------------------------ stages


def record(name: str, count: int, path: str) -> Figures:
    """Record a program, query it and save it."""
    import keras
    import tensorflow as tf

    import retrotape as rt

    assert keras.backend.backend() == tf.__name__
    _measure.one_thread()
    clock, tape = Clock(), rt.Tape()

    def run() -> tuple[Any, Any]:
        with tape:
            return PROGRAMS[name](count)

    y, w = clock("record", run)
    clock("program", lambda: tape.program)
    grad = clock("gradient", lambda: tape.gradient(y, w))
    clock("why", lambda: str(tape.why(y, w)))
    clock("first_nonfinite", tape.first_nonfinite)
    clock("summary", lambda: str(tape.summary()))
    clock("save", lambda: tape.save(path, {"y": y, "w": w}))
    clock.figures["gradient"]["value"] = float(grad)
    clock.figures["save"]["bytes"] = os.path.getsize(path)
    return clock.figures


def query(name: str, count: int, path: str) -> Figures:
    """Query the saved tape."""
    del name, count
    import tensorflow as tf

    import retrotape as rt

    assert tf.executing_eagerly()
    _measure.one_thread()
    clock = Clock()
    tape = clock("load", lambda: rt.load(path))
    grad = clock("loaded: gradient", lambda: tape.gradient("y", "w"))
    clock("loaded: why", lambda: str(tape.why("y", "w")))
    clock("loaded: first_nonfinite", tape.first_nonfinite)
    clock("loaded: summary", lambda: str(tape.summary()))
    clock("loaded: save", lambda: tape.save(path + ".again"))
    clock.figures["loaded: gradient"]["value"] = float(grad)
    return clock.figures


def command(verb: str) -> Callable[[str, int, str], Figures]:
    """Return a stage that runs a command of the command line."""

    def run(name: str, count: int, path: str) -> Figures:
        del name, count
        from retrotape import cli

        clock = Clock()
        clock(verb, lambda: cli.main([verb, path], standalone_mode=False))
        return clock.figures

    return run


CHILDREN = {"record": record, "query": query, "show": command("show"), "check": command("check")}


def child(which: str, name: str, count: str, path: str, out: str) -> None:
    found = CHILDREN[which](name, int(count), path)
    with open(out, "w") as file:
        json.dump(found, file)


def measure(name: str, count: int) -> Figures:
    """Return the figures of all stages, each group in its own process."""
    found: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "long.tape"), os.path.join(folder, "figures.json")
        for which in CHILDREN:
            arguments = [sys.executable, __file__, "--child", which, name, str(count), path, out]
            done = subprocess.run(arguments, capture_output=True, text=True, env=os.environ, check=False)
            if done.returncode:
                print(done.stdout[-2000:], done.stderr[-4000:], file=sys.stderr)
                raise SystemExit(f"{name}, {count:,} ops: `{which}` failed with exit code {done.returncode}")
            with open(out) as file:
                found.update(json.load(file))
    mine, loaded = found["gradient"]["value"], found["loaded: gradient"]["value"]
    assert math.isclose(mine, loaded, rel_tol=1e-5), (name, count, mine, loaded)
    return found


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope of the logarithms, by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(max(value, 1e-3)) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return top / sum((a - mean_x) ** 2 for a in x)


def main(names: list[str], sizes: list[int]) -> None:
    for name in names:
        runs = [measure(name, size) for size in sizes]
        for key, unit, digits in (("seconds", "CPU seconds", 2), ("peak", "peak, MiB", 0)):
            rows = []
            for stage in runs[0]:
                values = [run[stage][key] for run in runs]
                shown = [f"{value:.{digits}f}" for value in values]
                rows.append([stage, *shown, f"{exponent(sizes, values):.2f}" if len(sizes) > 1 else ""])
            _measure.table(f"{name}: {unit}", ["stage", *(f"{size:,}" for size in sizes), "exponent"], rows)
        print(f"{name}: file size", ", ".join(f"{run['save']['bytes'] / 2**20:.1f}" for run in runs), "MiB", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("programs", nargs="*", choices=[*PROGRAMS, []], help="default: all")
        parser.add_argument("--ops", nargs="+", type=int, default=list(SIZES))
        given = parser.parse_args()
        main(given.programs or list(PROGRAMS), given.ops)
