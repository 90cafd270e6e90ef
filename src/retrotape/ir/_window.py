"""A read-only view of the first items of a growing column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

_Item = TypeVar("_Item")


class Window(Sequence[_Item]):
    """The first items of a list to which more may be appended: made in constant time, and it never changes.

    >>> column = ["a", "b"]
    >>> window = Window(column, 2)
    >>> column.append("c")
    >>> list(window), len(window), window[-1]
    (['a', 'b'], 2, 'b')
    """

    __slots__ = ("_column", "_length")

    def __init__(self, column: Sequence[_Item], length: int) -> None:
        self._column, self._length = column, length

    @overload
    def __getitem__(self, index: int) -> _Item: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[_Item, ...]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if type(index) is slice:
            return tuple(self._column[i] for i in range(*index.indices(self._length)))
        if 0 <= index < self._length:
            return self._column[index]
        if -self._length <= index < 0:
            return self._column[self._length + index]
        raise IndexError(f"{index} is out of range: there are {self._length}")

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[_Item]:
        return islice(iter(self._column), self._length)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, (Window, tuple, list)) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
