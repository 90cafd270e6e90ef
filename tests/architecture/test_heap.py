"""Nothing walks the heap: Python hands out objects of other threads that are half made, and plain TensorFlow fails."""

from __future__ import annotations

import re

from architecture.source import FILES, name, text

WALK = re.compile(r"\bget_(objects|referrers|referents)\b")


def test_no_heap_walk():
    assert [name(path) for path in FILES if WALK.search(text(path))] == []


def test_a_walk_would_be_noticed():
    assert WALK.search("for thing in gc.get_objects():")
