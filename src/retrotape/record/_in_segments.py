"""The part of a recorder that keeps values in segments, and releases those that a query has passed."""

from __future__ import annotations

from retrotape._types import Tensor
from retrotape.record._following import Following
from retrotape.record._segments import Segments


class InSegments(Following):
    """A trace whose values may be kept in segments.

    Attributes:
      segments: Decides which values stay; None if nothing is dropped.
    """

    segments: Segments | None

    def segment_size(self) -> int | None:
        """Return how many bytes recomputation may hold at a time; None if the tape is not kept in segments."""
        return None if self.segments is None else 2 * self.segments.size

    def segment_starts(self) -> list[int]:
        """Return the first equation of each segment; none if values are not kept in segments, or were released."""
        if self.keep != "segments" or self.segments is None or self.segments.has_released:
            return []
        return self.segments.starts

    def may_release(self) -> bool:
        """Return whether a walk may drop kept values that it no longer needs: they can be recomputed.

        Not if tapes of the same `with` statement were queried more than once: each further query would recompute them.
        """
        if self.keep != "segments" or self.segments is None or self.segments.has_released or self.base is not None:
            return False
        return self._opened_at is None or not self._opened_at.queried_again

    def release(self, var: int) -> None:
        """Drop a kept value, if it can be recomputed."""
        if self.segments is not None:
            self.segments.release(var)

    def restore(self, var: int, value: Tensor) -> None:
        """Keep a recomputed value again, if it was released: a later query needs it too."""
        if self.segments is not None and self.segments.restore(var, value) and self._opened_at is not None:
            self._opened_at.queried_again = True
