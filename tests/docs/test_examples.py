"""Every example runs and has something to show."""

from __future__ import annotations

import re

import pytest

from docs.running import FOLDER, NAMES, run

# ------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", NAMES)
def test_runs_and_has_something_to_show(name):
    ran = run(name)
    assert ran.numbers
    assert 1 <= len(ran.printed.splitlines()) <= 12
    assert not re.search(r"\bnan\b", ran.printed)


@pytest.mark.parametrize("name", NAMES)
def test_says_in_one_to_three_sentences_what_is_learned(name):
    sentences = re.findall(r"[.?](?:\s|$)", run(name).module.__doc__)
    assert 1 <= len(sentences) <= 3


@pytest.mark.parametrize("name", NAMES)
def test_fits_on_two_screens(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 95


def test_readme_lists_each_once():
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES
