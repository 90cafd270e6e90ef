"""Folds repetitions in a program: a loop of a thousand steps is shown once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

LEAST = 6  # lines that a fold must save to be worth it
_CANDIDATES = 24  # periods to test at each position


class Fold(NamedTuple):
    """A run of items that repeats: its start, its length, and how many times it occurs."""

    start: int
    length: int
    times: int

    def saved(self) -> int:
        """Return how many items need not be shown."""
        return self.length * (self.times - 1)


def fold(keys: Sequence[Hashable]) -> Iterator[Fold]:
    """Partition items into runs, and yield these in order; a single item is a run that occurs once.

    >>> [run for run in fold("ab" * 5 + "c")]
    [Fold(start=0, length=2, times=5), Fold(start=10, length=1, times=1)]
    """
    following = _next_same(keys)
    start = 0
    while start < len(keys):
        best = max(_runs(keys, start, following), key=Fold.saved, default=Fold(start, 1, 1))
        best = best if best.saved() >= LEAST else Fold(start, 1, 1)
        yield best
        start += best.length * best.times


def _runs(keys: Sequence[Hashable], start: int, following: Sequence[int]) -> Iterator[Fold]:
    """Yield candidate runs that begin at an item, one for each of the next occurrences of that item."""
    again = start
    for _ in range(_CANDIDATES):
        again = following[again]
        length = again - start
        if again + length > len(keys):
            return
        yield Fold(start, length, _times(keys, start, length))


def _times(keys: Sequence[Hashable], start: int, length: int) -> int:
    times = 1
    at = start + length
    while at + length <= len(keys) and all(keys[at + n] == keys[start + n] for n in range(length)):
        times, at = times + 1, at + length
    return times


def _next_same(keys: Sequence[Hashable]) -> list[int]:
    """Return for each item the position of the next equal one; far beyond the end if there is none."""
    seen: dict[Hashable, int] = {}
    following = [2 * len(keys) + 1] * len(keys)
    for place in range(len(keys) - 1, -1, -1):
        following[place] = seen.get(keys[place], following[place])
        seen[keys[place]] = place
    return following
