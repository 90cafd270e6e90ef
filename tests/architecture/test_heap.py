"""Nothing walks the heap: Python hands out objects of other threads that are half made, and plain TensorFlow fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import retrotape

FILES = sorted(Path(retrotape.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_heap_walk(path):
    assert not re.search(r"\bget_(objects|referrers|referents)\b", path.read_text())
