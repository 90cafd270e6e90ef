"""Where values are read, without running code of the user, and whether they are what they were."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from datetime import datetime, time, timezone
from decimal import Decimal
from types import BuiltinMethodType, MethodType
from typing import Any, NamedTuple

import numpy as np

from retrotape.python._allowed import CONTAINERS, is_atom

ABSENT = object()


class Entry(NamedTuple):
    """A value that code depends on, and how to read it again.

    Attributes:
      read: Takes `source` and `key`, and returns the value.
      source: A namespace, a cell of a closure, an object.
      key: A name, a descriptor, a type.
      value: What was read; `ABSENT` if nothing.
      owner: The object that it belongs to: if that was made by the code itself, the value does not count.
      label: What a message calls it.
      of_library: Whether it belongs to a library, and the user does not name it.
    """

    read: Callable[[Any, Any], Any]
    source: Any
    key: Any
    value: Any
    owner: Any
    label: str
    of_library: bool = False

    def changed(self) -> str | None:
        """Return what has changed, for a message; None if nothing has."""
        now = self.read(self.source, self.key)
        if now is self.value or same(now, self.value):
            return None
        return f"what {self.label} contains" if self.read in _CONTENTS else self.label


def read_item(source: Any, key: str) -> Any:
    """Return what a name stands for in a namespace: a dictionary, or that of a class."""
    return source.get(key, ABSENT)


def read_cell(source: Any, key: Any) -> Any:
    """Return what a variable of a closure holds."""
    try:
        return source.cell_contents
    except ValueError:  # nothing was assigned yet
        return ABSENT


def read_member(source: Any, key: Any) -> Any:
    """Return a slot, or another attribute that is kept in C, by its descriptor."""
    try:
        return key.__get__(source)
    except (AttributeError, TypeError):  # there is none, or the object has another class now
        return ABSENT


def read_local(source: Any, key: Any) -> dict[str, Any]:
    """Return the attributes that an object has on this thread only."""
    return threading.local.__getattribute__(source, "__dict__")


def read_type(source: Any, key: Any) -> Any:
    """Return the class of an object."""
    return type(source)


def read_names(source: Any, key: Any) -> Any:
    """Return the names in the namespace of a class."""
    return tuple(source)


def read_size(source: Any, key: Any) -> Any:
    """Return how many names a namespace has."""
    return len(source)


def read_values(source: Any, key: Any) -> Any:
    """Return the values in the namespace of a class."""
    return tuple(source.values())


def read_content(source: Any, key: Any) -> tuple[Any, ...]:
    """Return what a container contains, by the methods of the type that it is derived from."""
    found = tuple(key.__iter__(source))
    return found if not issubclass(key, dict) else (*found, *key.values(source))


def base_of(kind: type) -> type | None:
    """Return the type by whose methods is read what objects of a class contain; None if they are no containers."""
    return next((CONTAINERS[one] for one in kind.__mro__ if one in CONTAINERS), None)


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return what a container contains: of a dictionary keys and values."""
    base = base_of(type(value))
    return () if base is None else read_content(value, base)


def read_array(source: Any, key: Any) -> tuple[Any, ...]:
    """Return what an array contains."""
    if isinstance(source, np.ndarray):
        content = tuple(np.ndarray.tolist(source.reshape(-1))) if source.dtype.hasobject else source.tobytes()
        return source.shape, source.dtype, content
    return (source.tobytes() if type(source) is array else bytes(source),)


def read_context(source: Any, key: Any) -> Any:
    """Return the value of a context variable."""
    return source.get(ABSENT)


def read_call(source: Any, key: Any) -> Any:
    """Return a setting that a function tells."""
    return source()


_TOLD_APART = (float, complex, Decimal, timezone)  # by what they print, also if they are equal
_CONTENTS = frozenset((read_array, read_content))


def same(one: Any, other: Any) -> bool:
    """Return whether two values are interchangeable: 1 and 1.0 are not, 0.0 and -0.0, the decimals 1.0 and 1.00.

    >>> same((1, "a"), (1, "a")), same(1, True), same([], [])
    (True, False, False)
    """
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in (tuple, frozenset):
        return len(one) == len(other) and all(map(same, one, other))
    if kind in _TOLD_APART or (issubclass(kind, np.generic) and is_atom(kind)):
        return repr(one) == repr(other)
    if kind in (datetime, time):  # equal ones may be of different time zones
        plain = repr(one.replace(tzinfo=None)) == repr(other.replace(tzinfo=None))
        return plain and same(one.tzinfo, other.tzinfo)
    if kind in (range, slice):
        return all(map(same, (one.start, one.stop, one.step), (other.start, other.stop, other.step)))
    if kind is MethodType:
        return one.__self__ is other.__self__ and one.__func__ is other.__func__
    return (is_atom(kind) or kind is BuiltinMethodType) and bool(one == other)
