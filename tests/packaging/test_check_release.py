"""A tag is published only where everything that names the release names the same one, with files that PyPI takes."""

from __future__ import annotations

import importlib.util
import io
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
GOOD = b"""Metadata-Version: 2.4
Name: retrotape
Version: 1.2.0
Description-Content-Type: text/markdown

# retrotape
"""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_release", ROOT / "tools" / "check_release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load()


def files(folder: Path, wheel: bytes = GOOD, source: bytes = GOOD) -> Path:
    """Write a wheel and a source distribution with nothing but metadata."""
    with zipfile.ZipFile(folder / "retrotape-1.2.0-py3-none-any.whl", "w") as archive:
        archive.writestr("retrotape-1.2.0.dist-info/METADATA", wheel)
    with tarfile.open(folder / "retrotape-1.2.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("retrotape-1.2.0/PKG-INFO")
        entry.size = len(source)
        archive.addfile(entry, io.BytesIO(source))
    return folder


NAMES = {
    "tag": "v1.2.0",
    "version": "1.2.0",
    "changelog": "# Changelog\n\n## 1.2.0 (2030-01-31)\n",
    "citation": "title: retrotape\nversion: 1.2.0\n",
}


def test_a_release_that_agrees_has_no_problems(tmp_path):
    assert tool.naming_problems(**NAMES) == []
    assert tool.file_problems(files(tmp_path), "1.2.0") == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"tag": "1.2.0"}, "got the tag '1.2.0'; expected 'v1.2.0'"),
        ({"tag": "v1.2.1"}, "got the tag 'v1.2.1'; expected 'v1.2.0'"),
        ({"changelog": "## Unreleased\n\n## 1.2.0rc1\n"}, "got a changelog without `## 1.2.0`"),
        ({"citation": "version: 1.1.0\n"}, "expected `version: 1.2.0`, and `date-released`"),
    ],
)
def test_what_is_named_differently_is_named(changed, text):
    (problem,) = tool.naming_problems(**NAMES | changed)
    assert text in problem


def test_no_version_in_between_is_published():
    names = {key: value.replace("1.2.0", "1.2.0.dev0") for key, value in NAMES.items()}
    (problem,) = tool.naming_problems(**names)
    assert "got the version 1.2.0.dev0; expected one without 'dev'" in problem


@pytest.mark.parametrize(
    ("wheel", "text"),
    [
        (GOOD.replace(b"Version: 1.2.0", b"Version: 1.1.0"), "got version 1.1.0; expected 1.2.0"),
        (GOOD.replace(b"Description-Content-Type: text/markdown\n", b""), "got no description in Markdown"),
        (GOOD.replace(b"\n# retrotape\n", b""), "got no description in Markdown"),
        (GOOD.replace(b"Name: retrotape", b"Name: retro tape!"), "is invalid for 'name'"),
        (GOOD.replace(b"Name: retrotape", b"Nam: retrotape"), "unrecognized field"),
    ],
)
def test_metadata_that_pypi_does_not_take(tmp_path, wheel, text):
    problems = tool.file_problems(files(tmp_path, wheel), "1.2.0")
    assert [problem for problem in problems if text in problem]
    assert all(problem.startswith("retrotape-1.2.0-py3-none-any.whl: ") for problem in problems)


def test_the_source_distribution_is_looked_at_too(tmp_path):
    (problem,) = tool.file_problems(files(tmp_path, source=GOOD.replace(b"1.2.0", b"1.1.0")), "1.2.0")
    assert problem.startswith("retrotape-1.2.0.tar.gz: got version 1.1.0")


def test_one_of_each_is_expected(tmp_path):
    assert "got nothing in" in tool.file_problems(tmp_path, "1.2.0")[0]
    files(tmp_path)
    (tmp_path / "retrotape-1.1.0.tar.gz").touch()
    (problem,) = tool.file_problems(tmp_path, "1.2.0")
    assert "retrotape-1.1.0.tar.gz, retrotape-1.2.0" in problem
    assert "expected one wheel and one source distribution: `make wheel`" in problem


def test_this_version_is_not_published_under_another_tag(capsys):
    assert tool.main("v0.0.0") == 1
    assert "check_release: got the tag 'v0.0.0'; expected 'v" in capsys.readouterr().err
