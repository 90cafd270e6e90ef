"""Run tests, each file in a process of its own that begins with TensorFlow imported.

A file starts in a tenth of a second, sees nothing of what another one has left, and its memory is free when it ends.

    python tools/run_tests.py tests src -m "not slow"
    python tools/run_tests.py tests/conform --share 3 --seed main     # a third of the tests, chosen by the seed
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.processes import fork_server  # noqa: E402 - lies with the tests, which use it too

# The longest ones, so that none of them runs alone at the end.
FIRST = ("tests/conform/test_conform.py",)
OUTCOMES = ("passed", "failed", "skipped")
TOLD = ("FAILED ", "ERROR ", "SKIPPED ", "XFAIL ", "XPASS ")


class Ended(NamedTuple):
    """What came of a group."""

    name: str
    counts: Counter[str]
    text: str
    seconds: float
    megabytes: float

    def line(self) -> str:
        """Return it as a line."""
        told = ", ".join(f"{self.counts[outcome]} {outcome}" for outcome in OUTCOMES if self.counts[outcome])
        return f"{self.seconds:6.1f} s {self.megabytes:5.0f} MB  {self.name}: {told or 'no tests'}"

    def notes(self) -> list[str]:
        """Return what has to be said at the end too."""
        return [line for line in self.text.splitlines() if line.startswith(TOLD)]


def groups_of(paths: Sequence[str]) -> list[list[str]]:
    """Return what runs in one process each: a file of tests, or the docstrings of a folder."""
    groups: list[list[str]] = []
    for path in map(Path, paths):
        files = sorted(path.rglob("*.py"))
        if not path.is_dir():
            groups.append([str(path)])
        elif path.parts[0] == "src":
            folders = sorted({file.parent for file in files})
            groups += [[str(file) for file in files if file.parent == folder] for folder in folders]
        else:
            groups += [[str(file)] for file in files if file.name.startswith("test_")]
    return sorted(groups, key=lambda group: group[0] not in FIRST)


def run(paths: list[str], arguments: argparse.Namespace, python: str, folder: Path) -> Ended:
    """Run a group, and wait for it."""
    name = str(Path(paths[0]).parent) if len(paths) > 1 else paths[0]
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
        story = Path(own, "story")
        options = {
            "marked": arguments.marked,
            "named": arguments.named,
            "share": arguments.share,
            "seed": arguments.seed,
        }
        request = json.dumps({"paths": paths, "folder": own, "story": str(story), **options})
        command = [python, str(ROOT / "tools" / "run_group.py"), request]
        started = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        seconds = time.perf_counter() - started
        lines = [json.loads(line) for line in story.read_text().splitlines()] if story.exists() else []
    text = done.stdout
    if not lines or "megabytes" not in lines[-1]:
        last = lines[-1]["test"] if lines else name
        text += f"\nFAILED {last} - its process ended with exit code {done.returncode}\n"
        lines.append({"outcome": "failed", "megabytes": 0.0})
    counts = Counter(line["outcome"] for line in lines if "outcome" in line)
    return Ended(name, counts, text, seconds, lines[-1]["megabytes"])


def commit() -> str:
    """Return the commit that is checked out: another one chooses other tests."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none"


def main() -> int:
    """Run what the command line names; return 1 if a test failed, 5 if there was none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="folders, files or ids of tests")
    parser.add_argument("-m", dest="marked", default="", help="only tests with these marks, as for pytest")
    parser.add_argument("-k", dest="named", default="", help="only tests with these names, as for pytest")
    parser.add_argument("-n", dest="processes", type=int, default=os.cpu_count() or 1, help="how many run at once")
    parser.add_argument("--part", default="", help="a name for the last line")
    parser.add_argument("--share", type=int, default=1, help="run one test of so many")
    parser.add_argument("--seed", default=commit(), help="which ones (by the commit)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in the background ignore it
    groups, started, ended = groups_of(arguments.paths), time.perf_counter(), []
    with (
        tempfile.TemporaryDirectory(prefix="retrotape-tests-", ignore_cleanup_errors=True) as folder,
        fork_server(Path(folder)) as python,
        ThreadPoolExecutor(arguments.processes) as pool,
    ):
        try:
            for future in as_completed([pool.submit(run, group, arguments, python, Path(folder)) for group in groups]):
                one = future.result()
                ended.append(one)
                print(one.text if one.counts["failed"] else "", end="")
                print(f"[{len(ended) * 100 // len(groups):3d}%] {one.line()}", flush=True)
        except BaseException:  # an interrupt: what has not begun does not
            pool.shutdown(cancel_futures=True)
            raise
    counts = sum((one.counts for one in ended), Counter[str]())
    print(*sorted(note for one in ended for note in one.notes()), sep="\n")
    label = f"{arguments.part}: " if arguments.part else ""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # the server, and all that it has forked
    minutes, cpu = (time.perf_counter() - started) / 60, (usage.ru_utime + usage.ru_stime) / 60
    largest = max((one.megabytes for one in ended), default=0.0)
    print(f"{label}{minutes:.1f} minutes, {cpu:.1f} of CPU, largest process {largest:.0f} MB")
    print(label + ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES))
    return 1 if counts["failed"] else 0 if counts["passed"] else 5


if __name__ == "__main__":
    sys.exit(main())
