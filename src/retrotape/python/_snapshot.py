"""Many values compared at once: in one pass in C, by identity."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import chain
from types import MappingProxyType
from typing import Any

from retrotape.python._compare import (
    ABSENT,
    Entry,
    read_cell,
    read_content,
    read_item,
    read_member,
    read_names,
    read_size,
    read_type,
    read_values,
)

_call: Any = getattr(operator, "call", lambda function, value: function(value))  # new in Python 3.11
_Part = Callable[[], Iterable[Any]]


class Snapshot:
    """Values that code depends on, compared at once.

    Only where that differs are they compared one by one. Equal numbers are made the expected ones then.

    Args:
      entries: The values, as they were.
    """

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        together = [one for one in entries if one.read in _PARTS and one.value is not ABSENT]
        missing = [one for one in entries if one.read is read_item and one.value is ABSENT]
        known = set(map(id, (*together, *missing)))
        self._rest = [one for one in entries if id(one) not in known]
        self._parts, self._sizes = _made(_PARTS, together), _made(_SIZES, together)
        self._spaces, self._names = [one.source for one in missing], [one.key for one in missing]
        self._expected: tuple[Any, ...] = ()
        self._lengths: list[int] | None = None

    def changed(self) -> str | None:
        """Return what has changed, for a message; None if nothing has."""
        lengths, now = None, ()
        try:
            lengths = list(chain.from_iterable([part() for part in self._sizes]))
            now = tuple(chain.from_iterable([part() for part in self._parts]))
            is_known = (
                lengths == self._lengths
                and len(now) == len(self._expected)
                and all(map(operator.is_, now, self._expected))
                and not any(map(operator.contains, self._spaces, self._names))
            )
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):  # something is not there any more
            is_known, lengths = False, None
        for one in self._rest if is_known else self._entries:
            why = one.changed()
            if why is not None:
                return why
        if not is_known:
            self._expected, self._lengths = now, lengths
        return None


def _made(makers: dict[Any, Callable[[list[Entry]], list[_Part]]], entries: list[Entry]) -> list[_Part]:
    found = ((make, [one for one in entries if one.read is read]) for read, make in makers.items())
    return [part for make, own in found if own for part in make(own)]


def _items(entries: list[Entry]) -> list[_Part]:
    by_space: dict[int, list[Entry]] = {}
    for one in entries:
        by_space.setdefault(id(one.source), []).append(one)
    several = [own for own in by_space.values() if len(own) > 1]
    getters = [operator.itemgetter(*[one.key for one in own]) for own in several]
    spaces = [own[0].source for own in several]
    single = [own[0] for own in by_space.values() if len(own) == 1]
    lone_spaces, names = [one.source for one in single], [one.key for one in single]
    return [
        lambda: chain.from_iterable(map(_call, getters, spaces)),
        lambda: map(operator.getitem, lone_spaces, names),
    ]


def _cells(entries: list[Entry]) -> list[_Part]:
    cells, content = [one.source for one in entries], operator.attrgetter("cell_contents")
    return [lambda: map(content, cells)]


def _types(entries: list[Entry]) -> list[_Part]:
    values = [one.source for one in entries]
    return [lambda: map(type, values)]


def _members(entries: list[Entry]) -> list[_Part]:
    def part(kind: Any) -> _Part:
        own = [one for one in entries if type(one.key) is kind]
        descriptors, values = [one.key for one in own], [one.source for one in own]
        return lambda: map(kind.__get__, descriptors, values)

    return [part(kind) for kind in {type(one.key) for one in entries}]


def _contents(entries: list[Entry]) -> list[_Part]:
    def part(base: Any, read: Any) -> _Part:
        values = [one.source for one in entries if one.key is base]
        return lambda: chain.from_iterable(map(read, values))

    bases = {one.key for one in entries}
    elements = [part(base, base.__iter__) for base in bases]
    return elements + [part(base, base.values) for base in bases if issubclass(base, dict)]


def _lengths(entries: list[Entry]) -> list[_Part]:
    def part(base: Any) -> _Part:
        values = [one.source for one in entries if one.key is base]
        return lambda: map(base.__len__, values)

    return [part(base) for base in {one.key for one in entries}]


def _all_names(entries: list[Entry]) -> list[_Part]:
    spaces = [one.source for one in entries]
    return [lambda: chain.from_iterable(spaces)]


def _all_values(entries: list[Entry]) -> list[_Part]:
    spaces = [one.source for one in entries]
    return [lambda: chain.from_iterable(map(MappingProxyType.values, spaces))]


def _sizes(entries: list[Entry]) -> list[_Part]:
    spaces = [one.source for one in entries]
    return [lambda: map(len, spaces)]


_PARTS: dict[Any, Callable[[list[Entry]], list[_Part]]] = {
    read_item: _items,
    read_cell: _cells,
    read_type: _types,
    read_member: _members,
    read_content: _contents,
    read_names: _all_names,
    read_values: _all_values,
    read_size: lambda entries: [],
}
_SIZES: dict[Any, Callable[[list[Entry]], list[_Part]]] = {
    read_content: _lengths,
    read_names: _sizes,
    read_values: _sizes,
    read_size: _sizes,
}
