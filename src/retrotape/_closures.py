"""What a function can see: its closure, its defaults and the globals that it names."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isfunction, ismethod
from typing import Any

_DEPTH = 6


def values_in(function: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the values that a function sees, and those that functions in its closure see.

    >>> scale = 3
    >>> 3 in list(values_in(lambda x: x * scale))
    True
    """
    if ismethod(function):
        yield function.__self__
        function = function.__func__
    if not isfunction(function) or depth == 0:
        return
    inside = [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
    named = [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
    yield from [*inside, *(function.__defaults__ or ()), *named]
    for value in inside:
        if value is not function:
            yield from values_in(value, depth - 1)


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
