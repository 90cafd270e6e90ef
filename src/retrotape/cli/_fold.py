"""A program with its repetitions folded: a loop of a thousand steps is shown once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

LEAST = 6  # lines that folding has to save, or it hides more than it helps
_CANDIDATES = 24  # periods that are tried at each place


class Fold(NamedTuple):
    """A run of items that comes several times in a row: where it begins, how long it is, how often it comes."""

    start: int
    length: int
    times: int


def fold(keys: Sequence[Hashable], start: int = 0, stop: int | None = None) -> Iterator[Fold]:
    """Yield the runs that items fall into, in order; an item alone is a run that comes once.

    >>> [run for run in fold("ab" * 5 + "c")]
    [Fold(start=0, length=2, times=5), Fold(start=10, length=1, times=1)]
    """
    stop = len(keys) if stop is None else stop
    following = _next_same(keys)
    while start < stop:
        best = Fold(start, 1, 1)
        later = start
        for _ in range(_CANDIDATES):
            later = following[later]
            length = later - start
            if later + length > stop:
                break
            found = Fold(start, length, _times(keys, start, length, stop))
            if _saved(found) > _saved(best):
                best = found
        yield best if _saved(best) >= LEAST else Fold(start, 1, 1)
        start += best.length * best.times if _saved(best) >= LEAST else 1


def _saved(run: Fold) -> int:
    return run.length * (run.times - 1)


def _times(keys: Sequence[Hashable], start: int, length: int, stop: int) -> int:
    times = 1
    at = start + length
    while at + length <= stop and all(keys[at + n] == keys[start + n] for n in range(length)):
        times, at = times + 1, at + length
    return times


def _next_same(keys: Sequence[Hashable]) -> list[int]:
    """Return for each item the place of the next one that is the same; beyond the end where there is none."""
    beyond = 2 * len(keys) + 1
    seen: dict[Hashable, int] = {}
    following = [beyond] * (beyond + 1)
    for place in range(len(keys) - 1, -1, -1):
        following[place] = seen.get(keys[place], beyond)
        seen[keys[place]] = place
    return following
