"""How much memory what a file computes may take: values that are alive are counted, and none may be too many."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any
from weakref import ref

from retrotape._types import Tensor
from retrotape.tf.core import identity_of

LEAST = 2**28  # bytes that every tape may take
ISOLATED = 2**34  # bytes, in a process of its own, of which the system limits the memory
GROWTH = 64  # bytes for each byte of tensors that it brings along: activations of a batch are many times its size


class Budget:
    """Counts the bytes of the values that are alive.

    Args:
      limit: How many there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self._granted = limit
        self._alive = 0
        self._gone: deque[int] = deque()  # filled by whoever drops a tensor, on any thread
        self._refs: dict[int, Any] = {}

    def fits(self, size: int) -> bool:
        """Say whether so many bytes may be added."""
        while self._gone:
            self._alive -= self._gone.popleft()
        return self._alive + size <= self.limit

    def extend(self, size: int) -> None:
        """Allow besides the limit what is in proportion to so many bytes."""
        self.limit = max(self.limit, self._granted + GROWTH * size)

    @property
    def alive(self) -> int:
        """How many bytes are alive."""
        return self._alive

    def count(self, tensors: Iterable[Tensor], sizes: Iterable[int]) -> None:
        """Count tensors for as long as they live."""
        for tensor, size in zip(tensors, sizes, strict=False):
            if size:
                self._alive += size
                self._watch(tensor, size)

    def _watch(self, tensor: Tensor, size: int) -> None:
        identity, gone, refs = (
            identity_of(tensor),
            self._gone,
            self._refs,
        )  # not self: it may be gone before its tensors

        def drop(_: Any) -> None:
            gone.append(size)
            refs.pop(identity, None)

        refs[identity] = ref(tensor, drop)


def memory_limit(stored: int, isolated: bool) -> int:
    """Return how many bytes what a file computes may take where the user sets no limit.

    Args:
      stored: How many bytes of tensors it brings along.
      isolated: Whether it is held by a process of its own.
    """
    return ISOLATED if isolated else LEAST + GROWTH * stored
