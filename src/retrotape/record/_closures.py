"""Which variables a backward function can see, so that their values are recorded before they change."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isfunction, ismethod
from typing import Any

from retrotape._tf import tf

_DEPTH = 4


def variables_in(function: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield the variables in what a function closes over, its defaults and the globals that it names."""
    if ismethod(function):
        function = function.__func__
    if not isfunction(function) or depth == 0:
        return
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
    named = [function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__]
    for value in [*cells, *(function.__defaults__ or ()), *named]:
        if isinstance(value, tf.Variable):
            yield value
        elif isinstance(getattr(value, "_value", None), tf.Variable):  # a Keras variable
            yield value._value
        elif value is not function and isfunction(value) and value in cells:
            yield from variables_in(value, depth - 1)


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
