"""`tools/mutants.py` on a package of one function, whose tests are known to find one fault and to miss another."""

from __future__ import annotations

import ast
import importlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from helpers.processes import PYTHON

TOOLS = Path(__file__).resolve().parents[2] / "tools"
SOURCE = '''
"""Texts stay: 1 < 2."""
from typing import TYPE_CHECKING
__all__ = ["f" + "g"]
if TYPE_CHECKING:
    from typing import Any
LIMIT = 3

def f(a: "int | None", b: int = 7) -> "int | None":
    """Return 1 + 2."""
    assert a is not None, 1 + 2
    if a < b and not a == 5:
        raise ValueError(f"{a + 1} is more than " + str(LIMIT - 2))
    for _ in [each for each in (a, b) if each]:
        break
    a *= b
    g(a, c=b)
    return None if a is b else max(a, b)
'''


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("_mutations")


def test_each_kind_of_fault_and_none_in_texts_annotations_and_assertions(mutations: ModuleType) -> None:
    found = mutations.mutants_of("f.py", SOURCE)
    assert Counter((each.kind, each.old, each.new) for each in found) == Counter(
        [
            ("constant", "3", "(4)"),
            ("constant", "7", "(8)"),
            ("condition negated", "a < b and (not a == 5)", "(not (a < b and (not a == 5)))"),
            ("boolean", "a < b and (not a == 5)", "(a < b or not a == 5)"),
            ("comparison", "a < b", "(a <= b)"),
            ("not removed", "not a == 5", "(a == 5)"),
            ("comparison", "a == 5", "(a != 5)"),
            ("constant", "5", "(6)"),
            ("statement deleted", "raise ValueError(f'{a + 1} is more than ' + str(LIMIT - 2))", "pass"),
            ("condition negated", "each", "(not each)"),
            ("jump swapped", "break", "continue"),
            ("arithmetic", "a *= b", "a //= b"),
            ("statement deleted", "a *= b", "pass"),
            ("statement deleted", "g(a, c=b)", "pass"),
            ("argument dropped", "g(a, c=b)", "(g(a))"),
            ("return value dropped", "return None if a is b else max(a, b)", "return None"),
            ("condition negated", "a is b", "(not a is b)"),
            ("comparison", "a is b", "(a is not b)"),
            ("argument dropped", "max(a, b)", "(max(a))"),
        ]
    )


def test_each_mutant_is_another_program(mutations: ModuleType) -> None:
    found = mutations.mutants_of("f.py", SOURCE)
    programs = {ast.dump(ast.parse(each.applied(SOURCE))) for each in found} | {ast.dump(ast.parse(SOURCE))}
    assert len(programs) == len(found) + 1 == len({each.id for each in found}) + 1


def test_who_reaches_the_head_of_a_statement_reaches_what_is_in_it(mutations: ModuleType) -> None:
    source = "a = 1\ndef f(b=2):\n    if (b and\n            b < 3):\n        return 4\n"
    found = {each.old: each.lines for each in mutations.mutants_of("f.py", source) if each.kind == "constant"}
    assert found == {"1": range(0), "2": range(0), "3": range(3, 5), "4": range(5, 6)}


def test_as_many_of_each_folder_and_kind_and_others_for_another_seed(mutations: ModuleType) -> None:
    lines = "".join(f"def f{each}(a): return a < {each} and {each} + a\n" for each in range(30))
    sources = {"a": {"a/x.py": lines}, "b": {"b/y.py": lines}}
    picked = mutations.pick(sources, 20, "1")
    assert Counter(each.file for each in picked) == {"a/x.py": 10, "b/y.py": 10}
    assert set(Counter(each.kind for each in picked).values()) == {4}
    assert picked == mutations.pick(sources, 20, "1")
    assert {each.id for each in picked} != {each.id for each in mutations.pick(sources, 20, "2")}


def test_a_change_elsewhere_changes_no_id(mutations: ModuleType) -> None:
    longer = SOURCE.replace("LIMIT = 3", "LIMIT = 3\n\ndef added(a):\n    return a < 1\n")
    ids = {each.id for each in mutations.mutants_of("f.py", SOURCE)}
    assert ids < {each.id for each in mutations.mutants_of("f.py", longer)}


# ------------------------------------------------------------------ from the lines to the test that finds a mutant

SUMS = """
def clipped(a, most):
    if a >= most:
        return most
    return a

def in_child():
    return 1

def never():
    return 2
"""
TESTS = """
import os, subprocess, sys, time
from tiny.sums import clipped

def test_clipped():
    assert clipped(1, 2) == 1
    assert clipped(3, 2) == 2

def test_child():
    code = "import sys; from tiny.sums import in_child; sys.exit(in_child() - 1)"
    subprocess.run([PYTHON, "-c", code], check=True)

def test_neither(): pass
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give the tool, with `tree` and `runner` for a small package."""
    monkeypatch.syspath_prepend(TOOLS)
    tool: Any = importlib.import_module("mutants")
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOLS / "run_group.py", tmp_path / "tools")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: for later\n")
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "sums.py").write_text(SUMS)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sums.py").write_text(TESTS.replace("PYTHON", repr(PYTHON)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tool


def mutant(tool: Any, old: str, kind: str) -> Any:
    found = sys.modules["_mutations"].mutants_of("tiny/sums.py", SUMS)
    (one,) = [each for each in found if (each.old, each.kind) == (old, kind)]
    return one


def test_from_the_lines_that_tests_reach_to_the_test_that_finds_a_mutant(tool: Any, tmp_path: Path) -> None:
    measured = tool.Measured(tmp_path / "measured", [f"{tmp_path}/tiny/*"])
    runner = tool.Runner(tmp_path, PYTHON)
    found, missed = mutant(tool, "1", "constant"), mutant(tool, "a >= most", "comparison")
    unreached = mutant(tool, "2", "constant")
    reaching = tool.reach(runner, [found, missed, unreached], measured, ["tests/test_sums.py"])
    group = ("tests/test_sums.py",)
    names = {name: set(groups[group]) for name, groups in reaching.items()}
    assert names == {found.id: {f"{group[0]}::test_child"}, missed.id: {f"{group[0]}::test_clipped"}}

    plans = {name: tool.chunks(found, groups, "", 100.0) for name, groups in reaching.items()}
    tool.prove(found, runner, plans[found.id])
    result = tool.try_mutant(found, runner, plans[found.id], 1)
    assert (result.found in ("quick", "test"), result.test) == (True, f"{group[0]}::test_child")
    assert tool.try_mutant(missed, runner, plans[missed.id], 1) == (missed.id, "", "", 1, 1)
    assert (tmp_path / "tiny" / "sums.py").read_text() == SUMS


def test_tests_that_do_not_run_the_tree_are_refused(tool: Any, tmp_path: Path) -> None:
    todo = [tool.Chunk("quick", ("tests/test_sums.py",), ("tests/test_sums.py::test_neither",), 0.1)]
    (tmp_path / "tests" / "test_sums.py").write_text("def test_neither(): pass\n")
    with pytest.raises(RuntimeError, match="these tests do not run what is in"):
        tool.prove(mutant(tool, "1", "constant"), tool.Runner(tmp_path, PYTHON), todo)


def test_what_takes_too_long_has_found_the_mutant(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "tests" / "test_sums.py").write_text("import time\ndef test_it(): time.sleep(60)\n")
    lines = tool.Runner(tmp_path, PYTHON).run(("tests/test_sums.py",), tmp_path, dict(tool.os.environ), limit=2.0)
    assert lines[-1] == {"test": "tests/test_sums.py::test_it (too long)", "outcome": "failed"}


def test_near_tests_come_first_and_those_of_the_sample_before(tool: Any) -> None:
    found = mutant(tool, "1", "constant")._replace(file="src/retrotape/query/_names.py")
    files = ["tests/tf/test_core.py", "tests/query/test_names.py", "tests/conform/test_it.py", "tests/query/test_b.py"]
    reaching = {(file,): {f"{file}::test{each}": 0.1 for each in range(100)} for file in files}
    todo = tool.chunks(found, reaching, "seed", 100.0)
    order = [files[1], files[3], files[2], files[0]]
    assert [chunk.group[0] for chunk in todo] == order * 2
    assert [chunk.selection for chunk in todo] == ["quick"] * 4 + ["test"] * 4
    assert sum(len(chunk.tests) for chunk in todo) == 400
    assert sum(chunk.seconds for chunk in tool.chunks(found, reaching, "seed", 5.0)) <= 10.0


def test_the_report_counts(tool: Any) -> None:
    mutants = [mutant(tool, "1", "constant"), mutant(tool, "2", "constant"), mutant(tool, "a >= most", "comparison")]
    results = {
        mutants[0].id: tool.Result(mutants[0].id, "quick", "tests/a.py::test_a", 3, 5),
        mutants[1].id: tool.Result(mutants[1].id, "test", "tests/a.py::test_b", 3, 5),
        mutants[2].id: tool.Result(mutants[2].id, "", "", 4, 5),
    }
    text = tool.report(mutants, results, 7)
    assert (
        f"{mutants[2].id} tiny/sums.py:3 clipped\n    comparison: a >= most => (a > most)\n    SURVIVED 4 of 5 tests"
        in text
    )
    assert text.splitlines()[-3:-1] == ["make quick: 1 of 3 mutants found", "make test: 2 of 3 mutants found"]
