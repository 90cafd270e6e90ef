"""A long trace as segments, of which only what passes from one to another stays in memory.

What lies inside a segment is computed again from what came in, one segment at a time, when a walk gets there. With
segments as large as everything that passes between them, memory grows with the square root of the length, for the
price of running the forward pass once more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.ir import LEAF, Builder, bytes_of
from retrotape.record._traits import Keep

SEGMENT = 32 * 2**20  # bytes inside a segment, to begin with: below, there is nothing to save


class _Crossing(NamedTuple):
    """A value that is used in a later segment than the one that made it."""

    made: int  # by equation
    used: int
    size: int


class Segments:
    """Decides, while equations are written down, which values stay.

    Args:
      builder: The program that grows.
      values: What is kept, by var.
      offload: Moves a value elsewhere and returns what stands for it; None where it is to be computed again.
    """

    def __init__(
        self,
        builder: Builder,
        values: dict[int, Any],
        offload: Callable[[Tensor], Any] | None = None,
        size: int | None = None,
    ) -> None:
        self._builder, self._values, self._offload = builder, values, offload
        self.size = size or SEGMENT  # in bytes, from which on a segment ends
        self._starts = [0]  # the first equation of each segment
        self._inside: dict[int, int] = {}  # var → bytes, of values in the open segment that may go
        self._bytes = 0
        self._crossing: dict[int, _Crossing] = {}
        self._crossing_bytes = 0

    def took(self, inputs: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Note what the next equation takes: what comes from an earlier segment has to stay."""
        start, producers = self._starts[-1], self._builder.producers
        for var, tensor in zip(inputs, tensors, strict=True):
            made = producers[var]
            if made == LEAF or made >= start:
                continue
            before = self._crossing.get(var)
            if before is not None:
                self._crossing[var] = before._replace(used=start)
            elif var not in self._values:  # else it can never go
                self._values[var] = tensor
                size = bytes_of(self._builder.types[var])
                if self._offload is not None:
                    self._hold(var, size)
                    continue
                self._crossing[var] = _Crossing(made, start, size)
                self._crossing_bytes += size

    def keep(self, variables: Sequence[int], tensors: Sequence[Tensor], looks: Keep) -> None:
        """Keep what a rule looks at until its segment ends."""
        some, but = looks
        if not some:
            return
        builder, values = self._builder, self._values
        for position, (var, tensor) in enumerate(zip(variables, tensors, strict=True)):
            if position in but or var in values:
                continue
            values[var] = tensor
            made = builder.producers[var]
            if not (0 <= made < len(builder.eqns) and builder.eqns[made].op == "ReadVariableOp"):  # the variable's own
                self._hold(var, bytes_of(builder.types[var]))

    def _hold(self, var: int, size: int) -> None:
        self._inside[var] = size
        self._bytes += size

    def fork(self, builder: Builder, values: dict[int, Any], offload: Callable[[Tensor], Any] | None) -> Segments:
        """Return the segments of a fork of the trace, which offloads to a file of its own."""
        fork = Segments(builder, values, offload, self.size)
        fork._starts, fork._inside, fork._crossing = self._starts.copy(), self._inside.copy(), self._crossing.copy()
        fork._bytes, fork._crossing_bytes = self._bytes, self._crossing_bytes
        return fork

    def end_if_full(self) -> None:
        """End the segment if it is large enough."""
        if self._bytes < self.size:
            return
        for var in self._inside:
            offloaded = self._offload(self._values[var]) if self._offload else None
            if offloaded is not None:
                self._values[var] = offloaded
            elif self._offload is None:
                del self._values[var]
        self._inside.clear()
        self._bytes = 0
        self._starts.append(len(self._builder.eqns))
        while self._offload is None and self._crossing_bytes > self.size:
            self._merge()

    def _merge(self) -> None:
        """Make segments twice as large: what passed only between two that are now one may go."""
        self.size *= 2
        *closed, open_start = self._starts
        self._starts = [*closed[::2], open_start]
        for var, crossing in list(self._crossing.items()):
            if bisect_right(self._starts, crossing.made) == bisect_right(self._starts, crossing.used):
                del self._crossing[var], self._values[var]
                self._crossing_bytes -= crossing.size
