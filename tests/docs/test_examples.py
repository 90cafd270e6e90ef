"""What holds of every example; `test_examples_*.py` run them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from docs import running
from docs.running import FOLDER, NAMES, run, run_in


def test_each_is_run_by_one_file_of_tests():
    files = sorted(Path(__file__).parent.glob("test_examples_*.py"))
    assert Counter(name for file in files for name in run_in(file)) == Counter(NAMES)


@pytest.mark.parametrize(
    "body", ["return {}", "print('one')", "print('nan'); return {'a': 1}", "print('\\n' * 12); return {'a': 1}"]
)
def test_one_that_has_nothing_to_show_is_noticed(body, tmp_path, monkeypatch):
    (tmp_path / "empty.py").write_text(f"def main():\n    {body}\n")
    monkeypatch.setattr(running, "FOLDER", tmp_path)
    with pytest.raises(AssertionError):
        run.__wrapped__("empty")


def test_each_says_in_one_to_three_sentences_what_is_learned():
    docs = {name: ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())) or "" for name in NAMES}
    sentences = {name: len(re.findall(r"[.?](?:\s|$)", doc)) for name, doc in docs.items()}
    assert {name: count for name, count in sentences.items() if not 1 <= count <= 3} == {}


def test_each_fits_on_two_screens():
    lines = {name: len((FOLDER / f"{name}.py").read_text().splitlines()) for name in NAMES}
    assert {name: count for name, count in lines.items() if count > 95} == {}


def test_readme_lists_each_once():
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES
