"""The terminal pictures show what the programs print today."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("pictures", ROOT / "tools" / "pictures.py")
pictures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pictures)


def words(svg: str) -> list[str]:
    """Return the words of a picture, without those of its frame."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return " ".join(html.unescape(text).replace("\xa0", " ") for text in texts).split()


@pytest.mark.parametrize("draw", [pictures.why, pictures.demo], ids=lambda draw: draw.__name__)
def test_shows_what_is_printed_today(draw):
    svg = (pictures.FOLDER / f"{draw.__name__}.svg").read_text()
    printed = draw().export_text().split()
    assert len(printed) > 30
    # The frame has its own title; colours cut words in two, so only the letters are compared.
    assert "".join(printed) in "".join(words(svg))


@pytest.mark.parametrize("name", ["why", "demo"])
def test_is_seen_without_a_network(name):
    svg = (pictures.FOLDER / f"{name}.svg").read_text()
    assert set(re.findall(r"https?://[^\"' )]+", svg)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", ["why", "demo"])
def test_is_in_the_readme(name):
    assert f"docs/pictures/{name}.svg" in (ROOT / "README.md").read_text()
