"""`tools/crossings.py` on a package of four files whose calls can be counted by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
FILES = {
    "door.py": """
from tiny import _helper
from tiny.engine import _run

def query():
    _helper.check()
    return _run.run(3)

def query_through_a_stranger():
    return sorted([2, 1], key=_run.double)

def query_that_fails():
    _run.fail()
""",
    "_helper.py": """
def check():
    pass
""",
    "engine/__init__.py": "",
    "engine/_run.py": """
from tiny.data.inner import _source

def run(count):
    return [double(value) for value in _source.values(count)]

def double(value):
    return 2 * value

def fail():
    raise KeyError
""",
    "data/__init__.py": "",
    "data/inner/__init__.py": "",
    "data/inner/_source.py": """
from tiny.data import _other

def values(count):
    for value in range(count):
        yield _other.same(value)
""",
    "data/_other.py": """
def same(value):
    return value
""",
}


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("crossings")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name, source in FILES.items():
        path = tmp_path / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("tiny.door")
    for name in [name for name in sys.modules if name.partition(".")[0] == "tiny"]:
        del sys.modules[name]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return tmp_path / "tiny"


def test_files_and_changes_of_folder(crossings, tiny, package):
    route = crossings.trace(tiny.query, package)
    assert route.files == 5  # door, _helper, engine/_run, data/inner/_source, data/_other
    # door to engine once; engine to data for each of three values, and for the end of the generator.
    assert route.changes == 1 + 4


def test_the_trace_shows_depth_and_changes_of_folder(crossings, tiny, package):
    calls = [call for call in crossings.trace(tiny.query, package).calls if call.function != "<listcomp>"]
    assert [str(call) for call in calls[:3]] == [
        "  door.py:query",
        "    _helper.py:check",
        "*   engine/_run.py:run",
    ]
    values = next(call for call in calls if call.function == "values")
    assert str(values).startswith("* ")
    assert str(values).endswith(" data/inner/_source.py:values")
    same = next(call for call in calls if call.function == "same")
    assert (same.depth, same.changes_folder) == (values.depth + 1, False)


def test_a_caller_outside_of_the_package_does_not_count(crossings, tiny, package):
    from functools import reduce

    route = crossings.trace(lambda: reduce(lambda _, run: run(), [tiny.query_through_a_stranger], None), package)
    assert [str(call) for call in route.calls] == [
        "  door.py:query_through_a_stranger",
        "*   engine/_run.py:double",
        "*   engine/_run.py:double",
    ]
    assert (route.files, route.changes) == (2, 2)


def test_a_neighbour_whose_name_begins_alike_is_not_the_package(crossings, tiny, package):
    assert crossings.trace(tiny.query, package.with_name("tin")).calls == []


def test_the_profile_function_from_before_is_restored(crossings, tiny, package):
    def before(*_: object) -> None:
        pass

    outer = sys.getprofile()
    sys.setprofile(before)
    try:
        with pytest.raises(KeyError):
            crossings.trace(tiny.query_that_fails, package)
        found = sys.getprofile()
    finally:
        sys.setprofile(outer)
    assert found is before


def test_figures_above_their_limits(crossings, tiny, package):
    routes = {"query": crossings.trace(tiny.query, package)}
    assert crossings.above_limits(routes, {"query": (5, 5)}) == []
    assert crossings.above_limits(routes, {"query": None}) == []
    assert crossings.above_limits(routes, {"query": (4, 5)}) == ["query: 5 files, limit 4"]
    assert crossings.above_limits(routes, {"query": (5, 4)}) == ["query: 5 changes of folder, limit 4"]
