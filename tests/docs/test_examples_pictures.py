"""The examples' pictures; that each is whole is tested where the example is run."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.running import FOLDER, PICTURES, assert_whole_picture, load, run_in


def test_a_picture_that_is_blank_or_cut_off_is_noticed(tmp_path):
    pytest.importorskip("matplotlib")
    save = load("_picture").save
    save(lambda figure, numbers: figure.subplots(), {}, tmp_path / "blank.png")
    with pytest.raises(AssertionError, match="blank"):
        assert_whole_picture(tmp_path / "blank.png")

    def too_wide(figure: Any, numbers: dict[str, Any]) -> None:
        line(figure, numbers)
        figure.text(0.9, 0.5, 20 * "wide ")

    save(too_wide, {"heights": range(30)}, tmp_path / "cut.png")
    with pytest.raises(AssertionError, match="cut off"):
        assert_whole_picture(tmp_path / "cut.png")


def test_each_is_drawn_where_its_example_is_run():
    files = sorted(Path(__file__).parent.glob("test_examples_*.py"))
    drawing = [
        file for file in files if "assert_picture(name, tmp_path)\n" in file.read_text() and file != Path(__file__)
    ]
    assert set(PICTURES) <= {name for file in drawing for name in run_in(file)}


@pytest.mark.parametrize("name", PICTURES)
def test_picture_in_the_readme(name):
    assert f"(pictures/{name}.png)" in (FOLDER / "README.md").read_text()
    assert_whole_picture(FOLDER / "pictures" / f"{name}.png")


@pytest.mark.parametrize("name", PICTURES)
def test_the_command_line_offers_the_picture(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(FOLDER)  # where a script's own folder is
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert "--picture [PATH]" in capsys.readouterr().out


def line(figure: Any, numbers: dict[str, Any]) -> None:
    figure.subplots().plot(numbers["heights"], linewidth=5.0)


@pytest.mark.parametrize(("given", "expected"), [([], "test_examples_pictures.png"), (["mine.png"], "mine.png")])
def test_picture_is_saved_where_asked(given, expected, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    picture = load("_picture")
    monkeypatch.setattr(picture, "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["example.py", "--picture", *given])
    picture.start(lambda: {"heights": [1.0, 3.0, 2.0]}, line)
    assert [path.name for path in tmp_path.iterdir()] == [expected]
    assert re.search(rf"^picture: .*{expected}$", capsys.readouterr().out)


@pytest.fixture
def no_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_without_matplotlib_it_says_what_to_type_before_it_computes(no_matplotlib, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["example.py", "--picture"])
    ran = []
    with pytest.raises(SystemExit, match=r'needs matplotlib, .*Type: pip install "retrotape\[examples\]"$'):
        load("_picture").start(lambda: ran.append(1) or {}, line)
    assert not ran


def test_without_matplotlib_an_example_runs(no_matplotlib, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["example.py"])
    ran = []
    load("_picture").start(lambda: ran.append(1) or {}, line)
    assert ran == [1]
