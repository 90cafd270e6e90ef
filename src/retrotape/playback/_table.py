"""The recordings of a step as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from retrotape import _html
from retrotape.playback._known import Entry
from retrotape.tf.core import tf

_HEADER = ("arguments", "recorded because", "ops", "checks", "played back")
_NUMBERS = ("ops", "played back")


class Recordings(Sequence):
    """The recordings of a compiled step: what was recorded, why, and how often it was played back."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = list(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: Any) -> Any:
        return self._entries[index]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (one.signature, one.why, str(one.ops), ", ".join(one.checks) or "none", str(one.plays))
            for one in self._entries
        ]

    def __repr__(self) -> str:
        rows = [_HEADER, *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

    def _repr_html_(self) -> str:
        return _html.plain_table(_HEADER, self._rows(), _NUMBERS)


def in_words(key: Any) -> str:
    """Return the key of arguments as text."""
    if not isinstance(key, tuple):
        return str(key)
    if len(key) == 2 and type(key[0]) is int and (key[1] is None or isinstance(key[1], tuple)):
        return f"{tf.as_dtype(key[0]).name}{list(key[1] or ())}"
    if len(key) == 2 and key[0] == "object":
        return "object"
    if len(key) == 2 and isinstance(key[0], type):
        if key[0] in (tuple, list, dict) or hasattr(key[0], "_fields"):
            return f"{key[0].__name__}{in_words(key[1])}"
        return key[1] if isinstance(key[1], str) and key[0] is not str else repr(key[1])
    return "(" + ", ".join(map(in_words, key)) + ")"
