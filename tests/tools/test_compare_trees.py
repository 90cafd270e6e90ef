"""`benchmarks/compare_trees.py`: which trees it compares, and what it makes of the times; never how long they are."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("compare_trees")


@pytest.mark.parametrize(
    ("pairs", "ratio", "verdict"),
    [
        ([[(1.0, 1.0)] * 3, [(2.0, 2.0)] * 3], 1.0, ""),
        ([[(1.0, 1.2)] * 3, [(2.0, 2.2)] * 3], 1.15, "slower"),
        ([[(1.0, 0.5)] * 3, [(2.0, 1.0)] * 3], 0.5, "faster"),
        ([[(1.0, 1.2)] * 9, [(1.0, 0.9)] * 2], 1.2, ""),  # the second pair of processes does not agree
        ([[(1.0, 1.2), (1.0, 0.9), (1.0, 1.1), (1.0, 0.9), (1.0, 1.1)]], 1.1, ""),  # nor does a quarter of the rounds
        ([[(1.0, 2.0)]], 2.0, "slower"),
    ],
)
def test_ratios_and_verdicts(compare, pairs, ratio, verdict):
    found = compare.summary(pairs)
    assert found["ratio"] == pytest.approx(ratio)
    assert found["verdict"] == verdict


def test_medians_of_both_sides_and_of_each_pair(compare):
    found = compare.summary([[(1.0, 2.0), (3.0, 3.0), (4.0, 8.0)], [(5.0, 5.0), (6.0, 6.0)]])
    assert (found["old"], found["new"]) == (4.0, 5.0)
    assert found["pairs"] == [2.0, 1.0]
    assert found["quartiles"] == [1.0, 2.0]


def test_a_python_and_a_checkout_are_recognised(compare):
    with ExitStack() as stack:
        assert compare.find_tree(sys.executable, stack) == (sys.executable, None)
        assert compare.find_tree(str(ROOT), stack) == (sys.executable, ROOT / "src")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_revision_is_checked_out_and_removed(compare, tmp_path, monkeypatch):
    def git(*args: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", tmp_path, *who, *args], check=True, capture_output=True)

    source = tmp_path / "src" / "retrotape"
    source.mkdir(parents=True)
    git("init")
    for text in ("old", "new"):
        (source / "__init__.py").write_text(text)
        git("add", ".")
        git("commit", "-m", text)
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    with ExitStack() as stack:
        tree = compare.find_tree("HEAD~1", stack)
        assert (tree.source / "retrotape" / "__init__.py").read_text() == "old"
    assert not tree.source.exists()
    assert not list((tmp_path / ".git" / "worktrees").glob("*"))


def test_what_is_none_of_them_is_refused(compare):
    with ExitStack() as stack, pytest.raises(SystemExit, match="Got 'no such tree'; expected a Python, a checkout or"):
        compare.find_tree("no such tree", stack)


def test_rows_that_both_sides_have(compare):
    assert compare.wanted_rows(["a", "ab"], ["ab", "b"], "") == ["ab"]
    with pytest.raises(SystemExit, match="No row has 'x' in its name; there are: a, b"):
        compare.wanted_rows(["a"], ["a", "b"], "x")


@pytest.mark.slow  # starts TensorFlow twice
def test_two_processes_measure_every_row():
    command = [sys.executable, ROOT / "benchmarks" / "compare_trees.py", sys.executable, ROOT]
    few = ["--rounds", "1", "--pairs", "1", "--block", "0", "--json"]
    done = subprocess.run([*command, *few], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {"record 300 ops", "gradient MLP", "step CNN", "hvp MLP", "save MLP", "load + gradient MLP"} <= set(rows)
    assert all(row["old"] > 0 and row["new"] > 0 for row in rows.values())
