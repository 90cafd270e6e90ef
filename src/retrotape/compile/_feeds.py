"""The values that compiled functions take."""

from __future__ import annotations

from retrotape._types import Tensor
from retrotape.execute import Values
from retrotape.ir import bytes_of
from retrotape.record import Trace
from retrotape.tf import core

HELD = 1 << 24  # bytes of the largest value that is kept for the next query on a tape from a file


class Feeds:
    """The values of a trace, recomputed where they were not kept."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._kept = trace, trace.values
        self._values: Values | None = None

    def __call__(self, var: int) -> Tensor:
        value = self._kept.get(var)
        if value.__class__ is core.EagerTensor:
            return value
        if self._values is None:
            self._values = Values(self._trace)
        value = self._values(var)
        if self._trace.guard is not None and bytes_of(self._trace.program.types[var]) <= HELD:
            self._kept[var] = value  # a file has only leaves, and the next query of this kind takes it again
        return value
