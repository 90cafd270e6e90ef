"""What importing costs: `import tensorflow`, the same with a tape at hand, and the command line's help.

Each is a new process, in turn, several times; the median is shown.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 7
PROGRAMS = {
    "import tensorflow": "import tensorflow as tf; tf.keras.layers",
    "and retrotape": "import tensorflow as tf; tf.keras.layers; import retrotape",
    "and rt.Tape": "import tensorflow as tf; tf.keras.layers; import retrotape as rt; rt.Tape",
    "retrotape --help": "import sys; sys.argv = ['retrotape', '--help']; from retrotape.cli import main; main()",
    "python": "pass",
}


def seconds(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return time.perf_counter() - begin


def main() -> None:
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(ROUNDS):
        for name, code in PROGRAMS.items():
            taken[name].append(seconds(code))
    median = {name: statistics.median(times) for name, times in taken.items()}
    for name, time_taken in median.items():
        print(f"{name:20} {1000 * time_taken:7.0f} ms")
    for name in ("and retrotape", "and rt.Tape"):
        print(f"{name:20} adds {1000 * (median[name] - median['import tensorflow']):5.0f} ms")


if __name__ == "__main__":
    main()
