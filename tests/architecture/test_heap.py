"""Nothing walks the heap: Python hands out objects of other threads that are half made, and plain TensorFlow fails."""

from __future__ import annotations

import re

from architecture.source import FILES, name, text

WALK = re.compile(r"\bget_(objects|referrers|referents)\b")


# Where it is harmless, each with the reason.
HARMLESS = {
    "python/_observer.py": "one call from C, which keeps `id`s only",
    "python/_rules.py": "the dictionary behind a read-only view",
}


def test_no_heap_walk():
    assert [name(path) for path in FILES if WALK.search(text(path))] == list(HARMLESS)


def test_a_walk_would_be_noticed():
    assert WALK.search("for thing in gc.get_objects():")
