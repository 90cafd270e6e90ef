"""The tests lie where the source does: one folder for each of its folders, and a few that concern the whole."""

from __future__ import annotations

import ast
from pathlib import Path

import retrotape

SOURCE = Path(retrotape.__file__).parent
TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("*.py"))
LIMIT = 400

# Folders that mirror none of the source, each with its reason.
ACROSS = {
    "architecture": "what the source may import and how it is laid out",
    "conform": "one table of programs, run beside the stock tape",
    "docs": "the code in pages and examples",
    "golden": "texts and files that later releases must still give or read",
    "helpers": "what tests of several folders share",
    "laws": "mathematics that holds whatever part computes it",
    "packaging": "the package as it is built and installed",
    "scenarios": "what users do, from the first line to the last",
    "stress": "the whole library at once: many threads, interrupts at any line, long recordings",
    "tools": "the scripts in `tools/`",
}
# Tables longer than a file of tests may be, each with its reason.
TABLES = {
    "files/store/hostile.py": "one way to break a file after the other",
}


def folders(folder: Path) -> set[str]:
    """Return the subfolders that have Python files in them: one that has moved may leave a cache behind."""
    return {path.name for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))}


def names(folder: Path) -> set[str]:
    return folders(folder) | {path.stem for path in folder.glob("*.py")}


MIRRORS = sorted(folders(TESTS) - set(ACROSS))


def test_folders_mirror_the_source_or_are_listed():
    assert folders(SOURCE) <= set(MIRRORS) <= names(SOURCE)


def test_no_line_of_the_list_is_left_over():
    assert set(ACROSS) <= folders(TESTS)
    assert not set(ACROSS) & names(SOURCE)


def test_every_folder_has_tests_in_it():
    for name in {*MIRRORS, *ACROSS} - {"helpers"}:
        assert list((TESTS / name).rglob("test_*.py")), name
    assert not list((TESTS / "helpers").rglob("test_*.py"))
    assert not list(TESTS.glob("test_*.py"))


def test_every_tensorflow_runs_what_mirrors_the_source():
    makefile = (TESTS.parent / "Makefile").read_text()
    (line,) = (line for line in makefile.splitlines() if line.startswith("ON_EACH := "))
    assert sorted(line.split()[2:]) == sorted(f"tests/{name}" for name in [*MIRRORS, "conform"])


def test_no_file_of_tests_is_too_long():
    names = {path.relative_to(TESTS).as_posix(): path for path in FILES}
    assert [name for name in names.keys() - TABLES.keys() if len(names[name].read_text().splitlines()) > LIMIT] == []


def test_no_table_is_left_over():
    for name in TABLES:
        assert len((TESTS / name).read_text().splitlines()) > LIMIT, name
        assert not Path(name).name.startswith("test_"), name


def test_no_test_is_imported_by_another_file():
    """It would be imported twice, under two names: what is shared has a file of its own."""
    tests = {path.stem for path in FILES if path.name.startswith("test_")}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [*node.module.split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                modules = [part for alias in node.names for part in alias.name.split(".")]
            else:
                continue
            files = tests & set(modules)
            assert not files, f"{path.relative_to(TESTS)}: {files}"
