"""Import time: of `retrotape` after `import tensorflow`, and of `retrotape --help`.

Each is measured several times in a new process; the median is shown. What comes after TensorFlow is timed inside the
process, because the import time of TensorFlow itself varies more than that. Byte code is written first, as
an installation does.

Run: `python benchmarks/imports.py`
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

ROUNDS = 5
AFTER = """
import time
begin = time.perf_counter()
import tensorflow as tf; tf.keras.layers
loaded = time.perf_counter()
import retrotape as rt
there = time.perf_counter()
rt.Tape
print(loaded - begin, there - loaded, time.perf_counter() - there)
"""
HELP = "import sys; sys.argv = ['retrotape', '--help']; from retrotape.cli import main; main()"


def run(code: str) -> tuple[float, str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, env=env)
    return time.perf_counter() - begin, done.stdout


def main() -> None:
    names = ("import tensorflow", "import retrotape adds", "rt.Tape adds", "retrotape --help")
    rows = []
    run(AFTER)
    for _ in range(ROUNDS):
        printed = run(AFTER)[1].split()
        rows.append([*map(float, printed), run(HELP)[0]])
    for name, times in zip(names, zip(*rows, strict=True), strict=True):
        print(f"{name:22} {1000 * statistics.median(times):7.1f} ms")


if __name__ == "__main__":
    main()
