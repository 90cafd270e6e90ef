"""Values of Python, and whether they are still the same."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from enum import Enum
from functools import lru_cache
from inspect import getattr_static
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from retrotape.tf.core import EagerTensor, tf
from retrotape.tf.nests import is_variable

ABSENT = object()
IMMUTABLE = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    type(Ellipsis),
    tf.DType,
    np.dtype,
    np.generic,
    Enum,
)


class Item(NamedTuple):
    """A name in a namespace: a module, a class, an object, a closure.

    Attributes:
      space: The namespace.
      key: The name.
      value: What it stands for; `ABSENT` if nothing.
      label: What a message calls it.
      of_library: Whether it belongs to an object of Keras, and no user code mentions it.
    """

    space: Any
    key: Any
    value: Any
    label: str
    of_library: bool = False


class Content(NamedTuple):
    """A list, dictionary, set or array, what it contained, and whether it belongs to an object of Keras."""

    container: Any
    value: Any
    label: str
    of_library: bool = False


class Cell(Mapping):
    """The variable of a closure as a namespace of one name."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def __getitem__(self, key: str) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:  # nothing was assigned yet
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[str]:
        return iter(("cell",))

    def __len__(self) -> int:
        return 1


def holds_variable(value: Any) -> bool:
    """Return whether a value is a variable, of TensorFlow or Keras, without running user code."""
    if type(value) is EagerTensor:  # whose attributes only `attributes_of` may ask for
        return False
    return is_variable(value) or is_variable(getattr_static(value, "_value", None))


def is_immutable(value: Any) -> bool:
    """Return whether equal values are interchangeable."""
    if type(value) in (tuple, frozenset):
        return all(map(is_immutable, value))
    return isinstance(value, (*IMMUTABLE, tf.TensorShape))


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two values are interchangeable: 1 and 1.0 are not, nor 0.0 and -0.0."""
    if one is other:
        return True
    if type(one) is not type(other) or not is_immutable(one) or not is_immutable(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(are_equal, one, other))
    if isinstance(one, (float, complex, np.generic)):
        return repr(one) == repr(other)
    return bool(one == other)


CONTAINERS = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    deque,
    bytearray,
    array,
    Mapping,
    ref,
    ContextVar,
    np.ndarray,
)
CACHED = type(lru_cache(lambda: None))  # a function that remembers its results


def parts_of(container: Any) -> list[Any]:
    """Return what a container contains; for a dictionary its keys and values, for a reference what it refers to."""
    if isinstance(container, Mapping):
        return [part for pair in list(container.items()) for part in pair]
    if isinstance(container, ref):
        return [container()]
    if isinstance(container, ContextVar):
        return [container.get(ABSENT)]
    if isinstance(container, np.ndarray):
        return [container.shape, *container.reshape(-1).tolist()]
    return list(container)


def snapshot(container: Any) -> Any:
    """Return what a container contains, to compare it later."""
    if isinstance(container, np.ndarray) and not container.dtype.hasobject:
        return container.copy(order="C")
    if isinstance(container, (set, frozenset)):
        return frozenset(container)
    return tuple(parts_of(container))


def is_unchanged(container: Any, before: Any) -> bool:
    """Return whether a container contains what it did."""
    if isinstance(container, np.ndarray) and not container.dtype.hasobject:
        same = container.shape == before.shape and container.dtype == before.dtype
        if not same or not container.flags.c_contiguous:
            return same and container.tobytes() == before.tobytes()
        return np.array_equal(container.reshape(-1).view(np.uint8), before.reshape(-1).view(np.uint8))
    if isinstance(container, set):
        return container == before
    now = snapshot(container)
    return len(now) == len(before) and all(map(are_equal, now, before))


class Slots(Mapping):
    """Attributes of an object that are not in a dictionary."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: str) -> Any:
        found = getattr(self.value, key, ABSENT)
        if found is ABSENT:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
