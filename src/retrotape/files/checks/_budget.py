"""The memory that values computed from a file may take: the bytes of live values are counted and limited."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any
from weakref import ref

from retrotape._types import Tensor
from retrotape.tf.core import identity_of

LEAST = 2**28  # bytes that any tape may use
ISOLATED = 2**34  # bytes, in a separate process whose memory the system limits
GROWTH = 64  # bytes for each byte of tensors in the file: activations of a batch are many times its size


class Budget:
    """Counts the bytes of the values that are alive.

    Args:
      limit: How many there may be.
    """

    def __init__(self, limit: int) -> None:
        self.limit = self._granted = limit
        self._alive = 0
        self._gone: deque[int] = deque()  # filled when a tensor is dropped, on any thread
        self._refs: dict[int, Any] = {}

    def fits(self, size: int) -> bool:
        """Return whether `size` more bytes are allowed."""
        while self._gone:
            self._alive -= self._gone.popleft()
        return self._alive + size <= self.limit

    def extend(self, size: int) -> None:
        """Raise the limit in proportion to `size` bytes."""
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
        # Not self, which may be gone before its tensors.
        identity, gone, refs = identity_of(tensor), self._gone, self._refs

        def drop(_: Any) -> None:
            gone.append(size)
            refs.pop(identity, None)

        refs[identity] = ref(tensor, drop)


def memory_limit(stored: int, isolated: bool) -> int:
    """Return how many bytes values computed from a file may take by default.

    Args:
      stored: How many bytes of tensors the file holds.
      isolated: Whether it is loaded in a separate process.
    """
    return ISOLATED if isolated else LEAST + GROWTH * stored
