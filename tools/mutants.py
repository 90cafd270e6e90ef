"""Do the tests find small faults? Put one after the other into a copy of the source, and run the tests that reach it.

    python tools/mutants.py                       # 128 mutants, as many from each folder, chosen by the seed
    python tools/mutants.py --list                # what they are
    python tools/mutants.py --only 1c81be57       # one of them; results stay until the source changes

Which test reaches which line is measured first, once for each file of tests: that takes longer than the tests
themselves, and then most mutants take a few seconds. Measurements, results and the table (`report.txt`) are in
`build/mutants`. A mutant that survived runs again; one that was found does so when the source changes.

The sample that `make quick` would run at this commit comes first, then the other tests, those of the mutant's own
folder before others, up to a limit of seconds for each half. A test that takes far longer than it did, or all the
memory, has found the fault too. Tests that read the source instead of running it do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from _mutations import Mutant, pick
from _reached import Measured, Reaching
from run_group import is_in_share
from run_tests import ROOT, commit, fork_server, groups_of

FOLDERS = ("execute", "record", "rules", "lower", "playback", "query", "transform", "files/checks")
LEFT_OUT = ("tests/architecture/", "tests/tools/", "tests/packaging/", "tests/stress/interrupts/")
# Not `retrotape`: each process has to import what the copy holds at that moment.
IMPORTED = ("tensorflow", "keras", "pytest", "hypothesis", "coverage")
QUICK = 8  # `make quick` runs one test in so many
START = 1.5  # seconds that a process takes to start
CHUNK = 15.0  # seconds of tests of one file, before others have their turn
BYTES = 12 << 30
Group = tuple[str, ...]  # files of tests that run in one process


class Chunk(NamedTuple):
    """Tests of one group that run together, to find a mutant: those of "quick", or the others of "test"."""

    selection: str
    group: Group
    tests: tuple[str, ...]
    seconds: float


class Result(NamedTuple):
    """What became of a mutant: the selection and the test that found it, or how many of the tests did not."""

    id: str
    found: str
    test: str
    ran: int
    reaching: int


def copy_checkout(tree: Path) -> None:
    """Make the copy what the checkout is."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    for path in [path for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts]:
        if path.relative_to(tree).as_posix() not in names:
            path.unlink()
    for name in names:
        old, new = ROOT / name, tree / name
        if not new.exists() or new.read_bytes() != old.read_bytes():
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(old, new)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src", "tests"], cwd=tree, check=True)


def version(tree: Path) -> str:
    """Return what stands for the source of a tree."""
    files = sorted((tree / "src").rglob("*.py"))
    return hashlib.sha1(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()[:12]


@contextlib.contextmanager
def applied(mutant: Mutant, tree: Path) -> Iterator[None]:
    """Put a mutant into a tree for the length of the block."""
    path = tree / mutant.file
    before, times = path.read_text(), path.stat()
    path.write_text(mutant.applied(before))
    try:
        yield
    finally:
        path.write_text(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what Python has compiled of it is right again


class Runner:
    """Runs groups of tests in a tree, each in a process which a fork server starts."""

    def __init__(self, tree: Path, python: str) -> None:
        self.tree, self._python = tree, python

    def run(self, group: Group, own: Path, environment: Mapping[str, str], limit: float, **more: Any) -> list[Any]:
        """Run a group and return its story, which ends with a failure if the process did not come to its end."""
        story = own / "story"
        request = {"paths": group, "folder": str(own), "story": str(story), "marked": "not slow", "named": "", **more}
        words = [self._python, "tools/run_group.py", json.dumps({**request, "share": 1, "seed": ""})]
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": self.tree, "env": environment}
        try:
            code = subprocess.run(words, timeout=limit, check=False, **options).returncode
            why = f"its process ended with exit code {code}"
        except subprocess.TimeoutExpired:
            why = "too long"
        lines = [json.loads(line) for line in story.read_text().splitlines()] if story.exists() else []
        if not lines or "megabytes" not in lines[-1]:
            lines.append({"test": f"{lines[-1]['test'] if lines else group[0]} ({why})", "outcome": "failed"})
        return lines

    def measure(self, group: Group, measured: Measured) -> Reaching:
        """Return what a group reaches: measure it if that has not been done."""
        files = [self.tree / name for name in group]
        found = measured.of(files)
        if found is None:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
                lines = self.run(group, Path(own), measured.environment(Path(own)), limit=3600.0)
                seconds = {line["test"]: line["seconds"] for line in lines if line.get("outcome") == "passed"}
                measured.keep(files, Path(own), seconds)
            found = measured.of(files)
            assert found is not None
        return found

    def failing(self, chunk: Chunk) -> str:
        """Return the first test of some that fails now, or ""."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
            chosen = Path(own, "chosen")
            chosen.write_text("\n".join(chunk.tests))
            limit = 60 + 10 * chunk.seconds
            lines = self.run(chunk.group, Path(own), os.environ, limit, chosen=str(chosen), bytes=BYTES)
        outcomes = [(line["outcome"], line["test"]) for line in lines if "outcome" in line]
        if not outcomes:
            raise RuntimeError(f"{chunk.group}: no test has run.")
        return next((test for outcome, test in outcomes if outcome == "failed"), "")


def is_near(test: str, mutant: Mutant) -> int:
    """Return how far tests are from a mutant: those of its file are the nearest."""
    folder, _, name = mutant.file.removeprefix("src/retrotape/").rpartition("/")
    if test.startswith((f"tests/{folder}/", f"src/retrotape/{folder}/")):
        return 0 if name.removesuffix(".py").strip("_") in test else 1
    return 2 if test.startswith(("tests/conform/", "tests/laws/")) else 3


def chunks(mutant: Mutant, reaching: Mapping[Group, Mapping[str, float]], seed: str, limit: float) -> list[Chunk]:
    """Return the tests that are to find a mutant, in the order in which they run, those within the limit.

    Args:
      mutant: The mutant.
      reaching: The tests that reach it, of each group, with their seconds.
      seed: What chooses those of "quick".
      limit: The seconds for each of the two selections.
    """
    parts = []
    for group, tests in reaching.items():
        for selection in ("quick", "test"):
            some: list[str] = []
            turn, seconds = 0, 0.0
            for test in sorted(tests, key=lambda test: hashlib.sha1(test.encode()).digest()):
                if is_in_share(test, QUICK, seed) != (selection == "quick"):
                    continue
                if some and seconds + tests[test] > CHUNK:
                    parts.append((turn, Chunk(selection, group, tuple(some), seconds)))
                    some, turn, seconds = [], turn + 1, 0.0
                some.append(test)
                seconds += tests[test]
            if some:
                parts.append((turn, Chunk(selection, group, tuple(some), seconds)))
    parts.sort(key=lambda part: (part[1].selection, part[0], is_near(part[1].group[0], mutant), part[1].seconds))
    spent: Counter[str] = Counter()
    chosen = []
    for _, chunk in parts:
        if spent[chunk.selection] + chunk.seconds <= limit:
            spent[chunk.selection] += START + chunk.seconds
            chosen.append(chunk)
    return chosen


def try_mutant(mutant: Mutant, runner: Runner, todo: Sequence[Chunk], reaching: int) -> Result:
    """Run tests until one finds the mutant."""
    ran = 0
    with applied(mutant, runner.tree):
        for chunk in todo:
            test = runner.failing(chunk)
            if test:
                return Result(mutant.id, chunk.selection, test, ran, reaching)
            ran += len(chunk.tests)
    return Result(mutant.id, "", "", ran, reaching)


def prove(mutant: Mutant, runner: Runner, todo: Sequence[Chunk]) -> None:
    """Raise unless tests see what is put into the tree: they pass as it is, and fail if its file cannot be imported."""
    broken = mutant._replace(start=0, end=0, new="raise MemoryError  # ")
    if runner.failing(todo[0]) or not try_mutant(broken, runner, todo[:1], 0).found:
        raise RuntimeError(f"{todo[0].group}: these tests do not run what is in {runner.tree}.")


def report(mutants: Sequence[Mutant], results: Mapping[str, Result], measured: int) -> str:
    """Return the table and the totals."""
    lines = []
    for mutant in mutants:
        result = results.get(mutant.id)
        if result is None:
            end = "has not run"
        elif result.found:
            end = f"{result.found}: {result.test}"
        else:
            end = f"SURVIVED {result.ran} of {result.reaching} tests"
        change = f"{' '.join(mutant.old.split())[:70]} => {' '.join(mutant.new.split())[:70]}"
        lines.append(
            f"{mutant.id} {mutant.file}:{mutant.line} {mutant.function}\n    {mutant.kind}: {change}\n    {end}"
        )
    ended = [results[mutant.id] for mutant in mutants if mutant.id in results]
    for selections in (("quick",), ("quick", "test")):
        found = sum(result.found in selections for result in ended)
        lines.append(f"make {selections[-1]}: {found} of {len(ended)} mutants found")
    lines.append(f"{measured} groups of tests were measured")
    return "\n".join(lines) + "\n"


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["tests", "src"], help="tests that may find them (tests src)")
    parser.add_argument("--count", type=int, default=128, help="how many mutants (128)")
    parser.add_argument("--seed", default="1", help="which ones (1)")
    parser.add_argument("--limit", type=float, default=100.0, help="seconds of tests for each, twice (100)")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="these mutants, whether they ran or not")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    return parser.parse_args(words)


def choose(tree: Path, arguments: argparse.Namespace) -> list[Mutant]:
    """Return the mutants that the command line asks for."""
    package = tree / "src" / "retrotape"
    sources = {
        folder: {
            path.relative_to(tree).as_posix(): path.read_text() for path in sorted((package / folder).rglob("*.py"))
        }
        for folder in FOLDERS
    }
    return pick(sources, arguments.count, arguments.seed)


def reach(runner: Runner, mutants: Iterable[Mutant], measured: Measured, paths: Sequence[str]) -> Any:
    """Return {mutant: {group: {test: seconds}}} for the tests that reach each mutant."""

    def measure(group: Group) -> Reaching:
        return runner.measure(group, measured)

    found: dict[str, dict[Group, dict[str, float]]] = defaultdict(dict)
    groups = [tuple(group) for group in groups_of(paths) if not group[0].startswith(LEFT_OUT)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, (group, got) in enumerate(zip(groups, pool.map(measure, groups), strict=True), 1):
            print(f"\rmeasured {number} of {len(groups)} groups of tests", end="", flush=True)
            for mutant in mutants:
                tests = set(got.tests(runner.tree / mutant.file, mutant.lines))
                if tests:
                    found[mutant.id][group] = {test: got.seconds[test] for test in tests}
    print()
    return found


def main() -> int:
    """Run what the command line names; return 1 if a mutant survived."""
    arguments = options()
    folder = ROOT / "build" / "mutants"
    tree = folder / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    copy_checkout(tree)
    seed = commit()
    os.chdir(tree)
    mutants = choose(tree, arguments)
    own = folder / version(tree)
    measured = Measured(own, [f"{tree}/src/retrotape/{name}/*" for name in FOLDERS])
    told = own / "results.jsonl"
    rows = [Result(*json.loads(line)) for line in told.read_text().splitlines()] if told.exists() else []
    results = {row.id: row for row in rows}
    if arguments.list:
        print(report(mutants, results, 0), end="")
        return 0
    os.environ.update(PYTHONPATH=str(tree / "src"), PYTHONDONTWRITEBYTECODE="1")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as server,
        fork_server(Path(server), IMPORTED) as python,
    ):
        runner = Runner(tree, python)
        reaching = reach(runner, mutants, measured, arguments.paths)
        done = {row.id for row in rows if row.found}
        todo = [
            mutant for mutant in mutants if (mutant.id in arguments.only if arguments.only else mutant.id not in done)
        ]
        plans = {mutant.id: chunks(mutant, reaching[mutant.id], seed, arguments.limit) for mutant in todo}
        for mutant in [mutant for mutant in todo if plans[mutant.id]][:1]:
            prove(mutant, runner, plans[mutant.id])
        for mutant in todo:
            result = try_mutant(mutant, runner, plans[mutant.id], sum(map(len, reaching[mutant.id].values())))
            results[mutant.id] = result
            with told.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{mutant.id} {mutant.file}:{mutant.line} {result.test or 'SURVIVED'}", flush=True)
    text = report(mutants, results, len(list(own.glob("*.json"))))
    (folder / "report.txt").write_text(text)
    print(*text.splitlines()[-3:], sep="\n")
    return 0 if all(results[mutant.id].found for mutant in mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
