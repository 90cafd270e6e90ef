"""Divide a long trace into segments; only values that cross from one segment to another stay in memory.

Values inside a segment are recomputed from its inputs when the backward walk reaches it, one segment at a time. With
segments as large as all the values that cross between them, memory grows with the square root of the length, at the
cost of one more forward pass. The latest values, as many as fill a segment, stay: the walk needs them first.
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
        self.starts = [0]  # the first equation of each segment
        self._inside: dict[int, int] = {}  # var → bytes, of droppable values, the latest ones
        self._bytes = 0
        self._filled = 0  # bytes of the open segment
        self._crossing: dict[int, _Crossing] = {}
        self._crossing_bytes = 0
        self._released: dict[int, _Crossing] = {}
        self.has_released = False

    def add_uses(self, inputs: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Add the inputs of the next equation: a value from an earlier segment has to stay."""
        start, producers = self.starts[-1], self._builder.producers
        for var, tensor in zip(inputs, tensors, strict=True):
            made = producers[var]
            if made == LEAF or made >= start:
                continue
            before = self._crossing.get(var)
            if before is not None:
                self._crossing[var] = before._replace(used=start)
            elif self._offload is None and (var not in self._values or var in self._inside):
                self._cross(var, tensor, _Crossing(made, start, bytes_of(self._builder.types[var])))
            elif var not in self._values:  # else it is never dropped
                self._values[var] = tensor
                self._hold(var, bytes_of(self._builder.types[var]))

    def _cross(self, var: int, tensor: Tensor, crossing: _Crossing) -> None:
        self._values[var] = tensor
        self._bytes -= self._inside.pop(var, 0)
        self._crossing[var] = crossing
        self._crossing_bytes += crossing.size

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
        self._filled += size

    def fork(self, builder: Builder, values: dict[int, Any], offload: Callable[[Tensor], Any] | None) -> Segments:
        """Return the segments of a fork of the trace, which offloads to a file of its own."""
        fork = Segments(builder, values, offload, self.size)
        fork.starts, fork._inside, fork._crossing = self.starts.copy(), self._inside.copy(), self._crossing.copy()
        fork._bytes, fork._crossing_bytes, fork._filled = self._bytes, self._crossing_bytes, self._filled
        fork._released = self._released.copy()
        return fork

    def end_if_full(self) -> None:
        """End the segment if it has reached its size."""
        if self._filled >= self.size:
            self._filled = 0
            self.starts.append(len(self._builder.eqns))
            if self._offload is not None:
                self._offload_inside(self._offload)
            while self._offload is None and self._crossing_bytes > self.size:
                self._merge()
        while self._offload is None and self._bytes > self.size:
            var = next(iter(self._inside))
            self._bytes -= self._inside.pop(var)
            del self._values[var]

    def _offload_inside(self, offload: Callable[[Tensor], Any]) -> None:
        for var in self._inside:
            offloaded = offload(self._values[var])
            if offloaded is not None:
                self._values[var] = offloaded
        self._inside.clear()
        self._bytes = 0

    def release(self, var: int) -> None:
        """Drop a value that can be recomputed, before the tape is gone."""
        if self._offload is not None:
            return
        if var in self._inside:
            self._bytes -= self._inside.pop(var)
        elif var in self._crossing:
            self._released[var] = crossing = self._crossing.pop(var)
            self._crossing_bytes -= crossing.size
        else:
            return
        self.has_released = True
        self._values.pop(var, None)

    def restore(self, var: int, value: Tensor) -> bool:
        """Keep a value that was released and has been recomputed; return whether it was."""
        crossing = self._released.pop(var, None)
        if crossing is not None and var not in self._crossing:
            self._cross(var, value, crossing)
        return crossing is not None

    def _merge(self) -> None:
        """Merge segments in pairs: values that crossed only inside a pair are dropped."""
        self.size *= 2
        *closed, open_start = self.starts
        self.starts = [*closed[::2], open_start]
        for var, crossing in list(self._crossing.items()):
            if bisect_right(self.starts, crossing.made) == bisect_right(self.starts, crossing.used):
                del self._crossing[var], self._values[var]
                self._crossing_bytes -= crossing.size
