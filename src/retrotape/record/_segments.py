"""Divide a long trace into segments; only values that cross from one segment to another stay in memory.

Values inside a segment are recomputed from its inputs when the backward walk reaches it, one segment at a time. With
segments as large as all the values that cross between them, memory grows with the square root of the length, at the
cost of one more forward pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.ir import LEAF, Builder, bytes_of
from retrotape.record._traits import Keep

SEGMENT = 32 * 2**20  # initial bytes per segment: below this, there is nothing to save


class _Crossing(NamedTuple):
    """A value that is used in a later segment than the one that produced it."""

    made: int  # index of its equation
    used: int  # start of the last segment that uses it
    size: int


class Segments:
    """Decides, while equations are recorded, which values stay.

    Args:
      builder: Builds the program.
      values: The kept values, by var.
      offload: Moves a value elsewhere and returns an object that loads it; None to recompute values instead.
    """

    def __init__(
        self,
        builder: Builder,
        values: dict[int, Any],
        offload: Callable[[Tensor], Any] | None = None,
        size: int | None = None,
    ) -> None:
        self._builder, self._values, self._offload = builder, values, offload
        self.size = size or SEGMENT  # in bytes, at which a segment ends
        self._starts = [0]  # the first equation of each segment
        self._inside: dict[int, int] = {}  # var → bytes, of droppable values in the open segment
        self._bytes = 0
        self._crossing: dict[int, _Crossing] = {}
        self._crossing_bytes = 0

    def add_uses(self, inputs: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Add the inputs of the next equation: a value from an earlier segment has to stay."""
        start, producers = self._starts[-1], self._builder.producers
        for var, tensor in zip(inputs, tensors, strict=True):
            made = producers[var]
            if made == LEAF or made >= start:
                continue
            before = self._crossing.get(var)
            if before is not None:
                self._crossing[var] = before._replace(used=start)
            elif var not in self._values:  # else it is never dropped
                self._values[var] = tensor
                size = bytes_of(self._builder.types[var])
                if self._offload is not None:
                    self._hold(var, size)
                    continue
                self._crossing[var] = _Crossing(made, start, size)
                self._crossing_bytes += size

    def keep(self, variables: Sequence[int], tensors: Sequence[Tensor], read: Keep) -> None:
        """Keep the values that a rule reads until the segment ends."""
        some, but = read
        if not some:
            return
        builder, values = self._builder, self._values
        for position, (var, tensor) in enumerate(zip(variables, tensors, strict=True)):
            if position in but or var in values:
                continue
            values[var] = tensor
            made = builder.producers[var]
            if not (
                0 <= made < len(builder.eqns) and builder.eqns[made].op == "ReadVariableOp"
            ):  # shares the buffer of the variable
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
        """End the segment if it has reached its size."""
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
        """Merge segments in pairs: values that crossed only inside a pair are dropped."""
        self.size *= 2
        *closed, open_start = self._starts
        self._starts = [*closed[::2], open_start]
        for var, crossing in list(self._crossing.items()):
            if bisect_right(self._starts, crossing.made) == bisect_right(self._starts, crossing.used):
                del self._crossing[var], self._values[var]
                self._crossing_bytes -= crossing.size
