"""Is one version of retrotape slower than another? Both run in turn, and their CPU time is compared.

Run: `python benchmarks/compare_trees.py OLD [NEW]`. Each may be

- a Python that has retrotape, such as `/somewhere/.venv/bin/python`;
- a checkout, such as `../other`: its `src` is put before what this Python has;
- a git revision, such as `main~3`: it is checked out into a temporary folder.

Without NEW, it is this checkout. What is measured comes from this checkout for both (`_tree_worker.py`).

Two processes, one for each side, stay alive and take turns in short blocks, which of them is first changing with every
round; then two new processes do the same, for the layout of memory differs from process to process. A **ratio** is the
CPU time of new / old in one round; shown are the median of all rounds, the quartiles, and the lowest and highest median
of a pair of processes. *slower* or *faster* stands where quartiles and all pairs agree. One thread; no garbage
collection inside of a block.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import _measure

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("_tree_worker.py")
WARM_UP = 3
Times = dict[str, list[list[tuple[float, float]]]]  # row: for each pair of processes, (old, new) of each round


class Tree(NamedTuple):
    """An installation of retrotape."""

    python: str
    source: Path | None  # what goes before the packages of that Python


class Options(NamedTuple):
    """How much to measure."""

    rounds: int
    pairs: int
    block: float  # CPU seconds of a block
    threads: int
    only: str  # a part of the names of rows


class Worker:
    """A process that times one tree."""

    def __init__(self, tree: Tree, threads: int) -> None:
        self._tree = tree
        env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(tree.source or "")}
        command = [tree.python, str(WORKER), str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it ends with its input

    def introduction(self) -> tuple[Path, list[str]]:
        """Return the folder of the package that the process imports, and the names of its rows."""
        told = self._receive()
        package, source = Path(told["package"]).parent, self._tree.source
        if source is not None and source not in package.parents:
            raise SystemExit(f"{self._tree.python} imports {package}; expected it from {source}.")
        return package, told["rows"]

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"The process of {self._tree.python} ended with {self._process.wait()}; see above.")
        return json.loads(line)

    def seconds(self, row: str, inner: int = 1) -> float:
        """Return the CPU seconds of one call, of so many in a block."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"row": row, "inner": inner}) + "\n")
        self._process.stdin.flush()
        return self._receive()


# ------------------------------------------------------------------ which trees


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check out a revision into a temporary folder, and remove that afterwards."""
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), revision], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def is_revision(name: str) -> bool:
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def find_tree(name: str, stack: ExitStack) -> Tree:
    """Return the tree that an argument means."""
    path = Path(name)
    if path.is_file() and os.access(path, os.X_OK):
        return Tree(name, None)
    if (path / "src" / "retrotape").is_dir():
        return Tree(sys.executable, path.resolve() / "src")
    if is_revision(name):
        return Tree(sys.executable, stack.enter_context(checked_out(name)) / "src")
    raise SystemExit(
        f"Got {name!r}; expected a Python, a checkout or a git revision, "
        "such as `.venv/bin/python`, `../other` or `main~3`."
    )


# ------------------------------------------------------------------ measuring


def wanted_rows(old: list[str], new: list[str], only: str) -> list[str]:
    found = [row for row in new if row in old and only in row]
    if not found:
        raise SystemExit(f"No row has {only!r} in its name; there are: {', '.join(new)}.")
    return found


def block_sizes(workers: tuple[Worker, Worker], rows: list[str], block: float) -> dict[str, int]:
    """Warm up, and return how many calls of each row make a block."""
    sizes = {}
    for row in rows:
        for worker in workers:
            worker.seconds(row, WARM_UP)
        slowest = max(worker.seconds(row) for worker in workers)
        sizes[row] = max(1, round(block / slowest))
    return sizes


def measure_pair(trees: tuple[Tree, Tree], options: Options, times: Times) -> list[str]:
    """Let a new pair of processes take turns, add what they measure to `times`, and return their packages."""
    with Worker(trees[0], options.threads) as old, Worker(trees[1], options.threads) as new:
        (old_package, old_rows), (new_package, new_rows) = old.introduction(), new.introduction()
        rows = wanted_rows(old_rows, new_rows, options.only)
        sizes = block_sizes((old, new), rows, options.block)
        for row in rows:
            times.setdefault(row, []).append([])
        for round_ in range(options.rounds):
            for row in rows:
                order = (old, new) if round_ % 2 == 0 else (new, old)
                found = {worker: worker.seconds(row, sizes[row]) for worker in order}
                times[row][-1].append((found[old], found[new]))
    return [str(old_package), str(new_package)]


def summary(pairs: list[list[tuple[float, float]]]) -> dict[str, Any]:
    """Return medians and spread of one row.

    >>> summary([[(1.0, 2.0), (2.0, 4.0)], [(1.0, 2.0), (1.0, 2.0)]])["ratio"]
    2.0
    """
    rounds = [both for pair in pairs for both in pair]
    ratios = [new / old for old, new in rounds]
    low, _, high = statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    medians = [statistics.median(new / old for old, new in pair) for pair in pairs]
    verdict = ""
    if min(low, *medians) > 1.0:
        verdict = "slower"
    elif max(high, *medians) < 1.0:
        verdict = "faster"
    return {
        "old": statistics.median(old for old, _ in rounds),
        "new": statistics.median(new for _, new in rounds),
        "ratio": statistics.median(ratios),
        "quartiles": [low, high],
        "pairs": medians,
        "verdict": verdict,
    }


def show(rows: dict[str, dict[str, Any]], old: str, new: str) -> None:
    shown = [
        [
            name,
            f"{row['old'] * 1e3:.3f}",
            f"{row['new'] * 1e3:.3f}",
            f"{row['ratio']:.3f}",
            "{:.3f} - {:.3f}".format(*row["quartiles"]),
            f"{min(row['pairs']):.3f} - {max(row['pairs']):.3f}",
            row["verdict"],
        ]
        for name, row in rows.items()
    ]
    print(f"old: {old}\nnew: {new}")
    columns = ["", "old", "new", "new / old", "quartiles", "pairs of processes", ""]
    _measure.table("CPU milliseconds of one call", columns, shown)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; expected a whole number from 1 on")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a Python, a checkout or a git revision")
    parser.add_argument("new", nargs="?", default=str(ROOT), help="the same; this checkout if it is left out")
    parser.add_argument("--rounds", type=_count, default=15, help="turns of each pair of processes (%(default)s)")
    parser.add_argument("--pairs", type=_count, default=3, help="pairs of processes (%(default)s)")
    parser.add_argument("--block", type=float, default=0.05, help="CPU seconds of a block, at least (%(default)s)")
    parser.add_argument("--threads", type=_count, default=1, help="threads of TensorFlow (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows with this in their name")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    options = Options(given.rounds, given.pairs, given.block, given.threads, given.only)
    times: Times = {}
    with ExitStack() as stack:
        trees = find_tree(given.old, stack), find_tree(given.new, stack)
        for _ in range(options.pairs):
            packages = measure_pair(trees, options, times)
    rows = {name: summary(pairs) for name, pairs in times.items()}
    old, new = (f"{name} ({package})" for name, package in zip((given.old, given.new), packages, strict=True))
    if given.json:
        print(json.dumps({"old": old, "new": new, "rows": rows}, indent=2))
    else:
        show(rows, old, new)


if __name__ == "__main__":
    main()
