"""What a recording is made of: events, ways back that are code, and variables with the values that they had."""

from __future__ import annotations

import sys
from bisect import bisect_left
from typing import Any, NamedTuple

Tensor = Any


class Event(NamedTuple):
    """An op that has run, as TensorFlow reports it."""

    op: str | bytes
    inputs: tuple[Tensor, ...]
    attrs: Any
    outputs: tuple[Tensor, ...]
    place: Any  # whose line it was
    frugal: bool  # keep nothing that can be computed again
    stamp: int  # when it ran, the same on every tape that heard it


class Look(NamedTuple):
    """A place where Python saw a value."""

    identity: int  # of the tensor
    stamp: int  # when it was, on the clock of ops
    frame: int
    how: str  # the method that was called
    moment: int = 0  # when it was, on the clock of identities: what is born after it has a greater one


FOREVER = sys.maxsize  # the end of what has not ended
UNCOUNTED = -1  # in the place of what a layer returned: it failed, or was called without values to build a model


class Scope(NamedTuple):
    """A call of a Keras layer."""

    path: str  # its name, after those of the layers that called it
    begin: int  # when it was, on the clock of ops
    end: int
    returned: int  # the identity of the tensor that it returned, 0 where that is not one tensor; or UNCOUNTED


class Backward(NamedTuple):
    """A way back that is code, not a rule: of a custom gradient, or of a function."""

    function: Any  # to be called; or data, with `looking_at` to make a function of it
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    captures: tuple[int, ...] = ()  # what a function that is data looks at


class Cell:
    """A variable as the program sees it: the values that it had, oldest first."""

    __slots__ = ("handle", "since", "versions")

    def __init__(self, handle: Tensor, first: int) -> None:
        self.handle = handle
        self.versions = [first]
        self.since = [-1]  # the equation that made each version, never less than the one before

    @property
    def current(self) -> int:
        """The version that an op sees now."""
        return self.versions[-1]

    def forget(self, count: int) -> bool:
        """Forget the versions that are not among the first `count` vars; say whether any is left."""
        kept = sum(version < count for version in self.versions)
        del self.versions[kept:], self.since[kept:]
        return bool(self.versions)

    def number(self, k: int) -> int:
        """Return version `k`, or from the end if negative; the nearest one where there are not so many."""
        count = len(self.versions)
        return self.versions[max(0, min(k if k >= 0 else count - 1 + k, count - 1))]

    def at(self, index: int) -> int:
        """Return the version that equation number `index` saw."""
        return self.versions[max(bisect_left(self.since, index) - 1, 0)]


def same(left: Tensor, right: Tensor) -> bool:
    """Say whether two values are the same to the bit."""
    return left.numpy().tobytes() == right.numpy().tobytes()
