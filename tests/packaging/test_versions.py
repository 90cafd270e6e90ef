"""Which TensorFlow and Keras were tried is stated once in the code; everything else that states it agrees."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retrotape import _version, errors

ROOT = Path(__file__).parents[2]
(OLDEST, NEWEST), (OLDEST_KERAS, NEWEST_KERAS) = _version.TENSORFLOW, _version.KERAS
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def dotted(minor: tuple[int, int]) -> str:
    return ".".join(map(str, minor))


def span() -> str:
    return f">={dotted(OLDEST)},<{NEWEST[0]}.{NEWEST[1] + 1}"


def test_the_extras_take_these_versions() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'"(tensorflow(?:-cpu)?)([<>=].*?)"', text) == [
        ("tensorflow", span()),
        ("tensorflow-cpu", span()),
    ]


def test_the_locks_have_the_first_and_the_last() -> None:
    for name, minor in (("oldest", OLDEST), ("dev", NEWEST)):
        assert f"tensorflow-cpu=={dotted(minor)}." in (ROOT / "requirements" / f"{name}.in").read_text()
        assert f"\ntensorflow-cpu=={dotted(minor)}." in "\n" + (ROOT / "requirements" / f"{name}.lock").read_text()
    assert f"keras=={dotted(NEWEST_KERAS)}.*" in (ROOT / "requirements" / "dev.in").read_text()
    assert f"keras>={dotted(OLDEST_KERAS)}," in (ROOT / "requirements" / "oldest.in").read_text()


def test_the_pages_name_them() -> None:
    said = {"TensorFlow": set[str](), "Keras": set[str]()}
    for page in PAGES:
        for name, spans in said.items():
            spans.update(re.findall(rf"{name}(?: versions)?(?: is \|)? (\d\.\d+ to \d\.\d+)", page.read_text()))
    assert said["TensorFlow"] == {f"{dotted(OLDEST)} to {dotted(NEWEST)}"}
    assert said["Keras"] == {f"{dotted(OLDEST_KERAS)} to {dotted(NEWEST_KERAS)}"}


def test_no_other_file_of_the_source_states_them() -> None:
    stated = re.compile(rf"\b{re.escape(dotted(OLDEST))}\b|\({OLDEST[0]}, {OLDEST[1]}\)")
    files = [path for path in (ROOT / "src").rglob("*.py") if stated.search(path.read_text())]
    assert [path.name for path in files] == ["_version.py"]


def test_the_errors_name_them() -> None:
    whole = f"{dotted(OLDEST)} to {dotted(NEWEST)}"
    assert f"needs TensorFlow {whole} and" in str(errors.MissingTensorFlowError())
    assert f"Tested versions are {whole};" in str(errors.IncompatibleTensorFlowError("9.9", "x"))
    assert f'`pip install "tensorflow{span()}"`' in str(errors.UntriedTensorFlowWarning("9.9"))


# ------------------------------------------------------------------ make compat


def compat() -> object:
    spec = importlib.util.spec_from_file_location("compat", ROOT / "tools" / "compat.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("version", "platform", "wanted"),
    [
        ("2.22", "linux", "tensorflow-cpu>=2.22.0.dev0,<2.23"),
        ("2.17.1", "win32", "tensorflow-cpu==2.17.1"),
        ("2.22.0rc1", "linux", "tensorflow-cpu==2.22.0rc1"),
        ("2.22.0.dev20260905", "linux", "tensorflow-cpu==2.22.0.dev20260905"),
        ("nightly", "linux", "tf-nightly-cpu"),
        ("2.22", "darwin", "tensorflow>=2.22.0.dev0,<2.23"),
        ("nightly", "darwin", "tf-nightly"),
    ],
)
def test_what_is_installed_for_a_version(version: str, platform: str, wanted: str) -> None:
    assert compat().requirement(version, platform) == wanted  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", ["", "new", "2", "2.22; rm", "../2.22", "==2.22"])
def test_what_is_no_version(version: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "compat.py"), version], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    text = f"compat: got TF={version!r}; expected a version or nightly: `make compat TF=2.22`.\n"
    assert done.stderr == text


def test_it_ignores_the_warning_by_how_it_begins() -> None:
    _, _, begin = compat().UNTRIED.partition(":")  # type: ignore[attr-defined]
    assert str(errors.UntriedTensorFlowWarning("9.9")).startswith(begin)


def test_it_runs_what_the_oldest_version_runs() -> None:
    tests = " ".join(compat().TESTS)  # type: ignore[attr-defined]
    makefile = (ROOT / "Makefile").read_text()
    assert f"\nON_EACH := {tests}\n" in makefile
    assert '$(OLDEST)/bin/python $(RUN_TESTS) --part oldest -m "not slow" $(ON_EACH)' in makefile
