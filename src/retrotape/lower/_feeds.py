"""The values that compiled functions take."""

from __future__ import annotations

from collections.abc import Sequence

from retrotape._types import Tensor
from retrotape.execute import Values
from retrotape.ir import bytes_of
from retrotape.record import Trace
from retrotape.tf import core

_EAGER = frozenset((core.EagerTensor,))
HELD = 1 << 28  # most bytes of recomputed values that a tape from a file keeps for the next query


class Feeds:
    """The values of a trace, recomputed where they were not kept."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._kept = trace, trace.values
        self._values: Values | None = None

    def all(self, variables: Sequence[int]) -> list[Tensor]:
        """Return the values of some vars."""
        found = list(map(self._kept.get, variables))
        return found if _EAGER.issuperset(map(type, found)) else list(map(self, variables))

    def __call__(self, var: int) -> Tensor:
        value = self._kept.get(var)
        if value.__class__ is core.EagerTensor:
            return value
        if self._values is None:
            self._values = Values(self._trace)
        value = self._values(var)
        size = bytes_of(self._trace.program.types[var])
        if self._trace.guard is not None and self._trace.held + size <= HELD:
            self._kept[var] = value  # a file has only leaves, and the next query of this kind takes it again
            self._trace.held += size
        return value
