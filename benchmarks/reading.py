"""Cost of reading and verifying the values of a tape, compared with mapping the file, which trusts the disk.

Each run has its own process, which loads the tape, reads one value and computes one gradient that needs all of them.
Run: `python benchmarks/reading.py`. Medians of several runs, all files in the page cache; CPU milliseconds,
and the memory that the process holds above what TensorFlow took before the tape was loaded.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import _measure

RUNS = 5
SIZES = {"1 GB": (16, 4096, 4096), "4 MB": (16, 256, 256), "40 kB": (10, 32, 32)}
PARTS = ("load", "value", "gradient")


def save(path: str, count: str, rows: str, columns: str) -> dict[str, Any]:
    """Write a tape of `count` weights of that shape."""
    import tensorflow as tf

    import retrotape as rt

    weights = [tf.Variable(tf.random.normal((int(rows), int(columns))), name=f"w{n}") for n in range(int(count))]
    x = tf.ones((1, int(rows)))
    with rt.Tape() as tape:
        for weight in weights:
            x = tf.tanh(x @ weight)
        loss = tf.reduce_sum(x)
    return {"bytes": tape.save(path, loss=loss)}


def query(path: str, mmap: str) -> dict[str, Any]:
    """Load a tape and query it."""
    import tensorflow as tf

    import retrotape as rt

    _measure.one_thread()
    with rt.Tape() as tape:
        y = tf.tanh(tf.ones((2, 2)) @ tf.ones((2, 2)))
    tape.gradient(y, y)  # do not measure what the first query of a process initializes
    before, found = resident(), {}

    def timed(part: str, run: Any) -> Any:
        begin = time.process_time()
        result = run()
        found[part] = time.process_time() - begin
        return result

    loaded = timed("load", lambda: rt.load(path, mmap=mmap == "mmap"))
    timed("value", lambda: loaded["w0"].numpy()[0])
    timed("gradient", lambda: loaded.gradient("loss", ["w0", "w1"]))
    return {**found, "memory": resident() - before}


def resident() -> int:
    """Return the resident bytes of this process, including mapped files."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def in_child(*args: str) -> dict[str, Any]:
    """Run this file in a fresh process and return what it measured."""
    done = subprocess.run([sys.executable, __file__, *args], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    for name, shape in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.tape")
            in_child("save", path, *map(str, shape))
            runs = [(in_child("query", path, "read"), in_child("query", path, "mmap")) for _ in range(RUNS)]
        rows = []
        for part in (*PARTS, "memory"):
            read, mapped = (statistics.median(run[which][part] for run in runs) for which in (0, 1))
            unit = 1e-6 if part == "memory" else 1e3
            rows.append([part, f"{read * unit:,.1f}", f"{mapped * unit:,.1f}", f"{read / mapped:.2f}"])
        _measure.table(f"{name}: CPU ms, MB of memory", ["", "read", "mapped", "ratio"], rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"save": save, "query": query}[sys.argv[1]](*sys.argv[2:])))
    else:
        main()
