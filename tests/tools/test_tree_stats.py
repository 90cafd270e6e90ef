"""`tools/tree_stats.py` on a package whose figures can be counted by hand."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
ALL = "at import + in functions + for type checkers"
FILES = {
    "__init__.py": "from tiny.top import run as run\n",
    "errors.py": "class Error(Exception): ...\n",
    "data/__init__.py": "from tiny import errors\nclass Program: ...\n",
    "data/_text.py": "import os\nfrom tiny.data import Program\n\ndef text(program: Program) -> str: ...\n",
    "walk.py": """
from __future__ import annotations
from typing import TYPE_CHECKING
import tiny.data
if TYPE_CHECKING:
    from tiny.top import Top
def walk(top: Top, program: tiny.data.Program, other: 'Program | None', many: list[Program]) -> Program: ...
""",
    "top.py": "class Top:\n    def run(self) -> None:\n        from tiny import walk\n",
    "cli.py": "import tiny\nfrom tiny.errors import Error\n",
}


@pytest.fixture
def tree_stats(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("tree_stats")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, source in FILES.items():
        path = tmp_path / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path / "tiny"


@pytest.fixture
def found(tree_stats: ModuleType, package: Path) -> dict[str, Any]:
    return tree_stats.stats(package, ["Program", "Top", "Nobody"], largest=2)


def test_sizes(found):
    assert (found["files"], found["lines"]) == (7, 1 + 1 + 2 + 4 + 7 + 3 + 2)
    assert (found["files in the root"], found["lines in the root"]) == (5, 1 + 1 + 7 + 3 + 2)
    assert found["units"] == 5  # errors, data, walk, top, cli
    assert found["largest"] == {"walk.py": 7, "data/_text.py": 4}


def test_ranks_by_kind_of_import(found):
    assert found["imports"]["at import"]["order"] == [["errors", "top"], ["cli", "data"], ["walk"]]
    late = found["imports"]["at import + in functions"]
    assert late["order"] == [["errors"], ["cli", "data"], ["walk"], ["top"]]
    assert (late["ranks"], late["cycles"]) == (4, [])


def test_a_cycle_is_named_and_is_one_rank(found):
    every = found["imports"][ALL]
    assert every["cycles"] == [["top", "walk"]]
    assert every["order"] == [["errors"], ["cli", "data"], ["top", "walk"]]


def test_who_imports_the_package_itself(found):
    assert found["units that import the package"] == ["cli"]


def test_annotations_are_counted_if_they_are_the_class_itself(found):
    assert found["annotations"] == {"Program": 3, "Top": 1, "Nobody": 0}


def test_a_relative_import_is_refused(tree_stats, package):
    (package / "cli.py").write_text("from . import walk\n")
    with pytest.raises(ValueError, match="relative imports are not understood"):
        tree_stats.stats(package, [])


@pytest.mark.parametrize(
    ("line", "count"), [("12 pairs of places (9 files read)", 12), ("1 pair", 1), ("no duplicates", 0), ("?", None)]
)
def test_the_count_of_a_command_for_duplicates(tree_stats, package, tmp_path, monkeypatch, line, count):
    command = tmp_path / "duplicates"
    command.write_text(f"#!/bin/sh\necho '{line}'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tree_stats.count_duplicates(package) == count


def test_without_such_a_command_there_is_no_count(tree_stats, package, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tree_stats.count_duplicates(package) is None


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, TOOLS / "tree_stats.py", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_prints_tables_and_json(package):
    assert json.loads(run(package, "--json", "--count-annotations", "Top").stdout)["annotations"] == {"Top": 1}
    assert "parameters annotated Top" in run(package, "--count-annotations", "Top").stdout


def test_a_folder_that_is_no_package(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 2
    assert "expected the folder of a package" in done.stderr
