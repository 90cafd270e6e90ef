"""The table of methods in the how-to, and the page of the reference, have all methods."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import retrotape as rt

DOCS = Path(__file__).parents[2] / "docs"
METHODS = {
    name
    for name, value in vars(rt.aggregate).items()
    if isinstance(value, type) and issubclass(value, rt.aggregate.Aggregator) and not inspect.isabstract(value)
}


def test_the_table_lists_each_method_once():
    lines = re.findall(r"^\| (`.*?) \|", (DOCS / "howto" / "many_losses.md").read_text(), re.MULTILINE)
    listed = [name for line in lines for name in re.findall(r"`(\w+)`", line)]
    assert len(listed) > 20
    assert sorted(listed) == sorted(METHODS)


def test_the_reference_has_each_name_once():
    shown = re.findall(
        r"^::: retrotape\.(?:aggregate\.)?(\w+)$", (DOCS / "api" / "aggregate.md").read_text(), re.MULTILINE
    )
    assert sorted(shown) == sorted({*rt.aggregate.__all__, "aggregate"})
