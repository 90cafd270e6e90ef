"""The package as a user gets it: built, installed where nothing of the repository is, run and type-checked."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (found,) = built.glob("*.whl")
    return found


def environment(folder: Path) -> Path:
    """Make an empty environment, and return its Python."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """A Python that has the wheel, and TensorFlow from where the tests have it."""
    python = environment(tmp_path_factory.mktemp("user") / "venv")
    done = run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=wheel.parent)
    assert done.returncode == 0, done.stderr
    # A path line adds a folder but not the path lines in it, so the editable install of the repository stays unseen.
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


def example() -> tuple[str, str]:
    """Return the program of the README and what it prints."""
    text = (ROOT / "README.md").read_text()
    code, printed = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", text, re.DOTALL).groups()
    return code, printed


def test_the_first_example_has_fifteen_lines():
    lines = [line for line in example()[0].splitlines() if line.strip()]
    assert len(lines) <= 15


def test_wheel_has_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"retrotape"}
    for needed in ("py.typed", "rules/allowed_ops.txt", "record/exclusions.json", "cli/_demo/__init__.py"):
        assert f"retrotape/{needed}" in names
    assert not [name for name in names if "__pycache__" in name]


def test_source_distribution_can_be_tested(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("Makefile", "conftest.py", "requirements/dev.lock", "tests/packaging/test_wheel.py", "mkdocs.yml"):
        assert needed in names
    for needed in (".ci/run", ".github/workflows/ci.yml", ".pre-commit-config.yaml", ".editorconfig", "CITATION.cff"):
        assert needed in names
    assert not [name for name in names if ".venv" in name or "__pycache__" in name]


def test_runs_the_readme_where_only_the_wheel_is(python, tmp_path):
    code, printed = example()
    done = run(python, "-c", code + "print(rt.__file__)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *lines, file = done.stdout.splitlines()
    assert lines == printed.splitlines()
    assert Path(file).is_relative_to(python.parents[1])


def test_command_is_installed(python, tmp_path):
    done = run(python.parent / "retrotape", "--version", cwd=tmp_path)
    assert done.stdout.startswith("retrotape")


def checked(python: Path, path: Path, cache: Path) -> list[str]:
    done = run(
        *(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", cache),
        *(
            "--allow-untyped-calls",
            "--disable-error-code",
            "import-untyped",
            "--disable-error-code",
            "import-not-found",
        ),
        *("--no-error-summary", "--no-pretty", path),
        cwd=python.parents[1],  # away from the settings of the repository
    )
    return (done.stdout + done.stderr).splitlines()


def test_a_users_program_passes_the_type_checker(python, tmp_path):
    assert checked(python, HERE / "user_code.py", tmp_path) == []


def test_the_type_checker_finds_a_users_mistakes(python, tmp_path):
    path = HERE / "wrong_code.py"
    wrong = {number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# wrong")}
    found = {int(line.split(":")[1]) for line in checked(python, path, tmp_path) if ": error:" in line}
    assert found == wrong
    assert len(wrong) == 7


@pytest.mark.slow  # downloads TensorFlow
def test_installs_from_nothing_with_its_extra(wheel, tmp_path):
    python = environment(tmp_path / "venv")
    done = run(python, "-m", "pip", "install", "-q", f"{wheel}[cpu]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    code, printed = example()
    ran = run(python, "-c", code, cwd=tmp_path)
    assert ran.stdout == printed, ran.stderr
