"""How often a snapshot is taken: seldom enough to cost little, often enough that the log stays small."""

from __future__ import annotations

import time

_SHARE = 0.01  # of the time of training that snapshots may take
_BYTES = 2**28  # of batches between two snapshots
_FEWEST, _MOST = 8, 1600  # steps between two snapshots, whatever they cost


class Pace:
    """Says when a snapshot is due.

    Args:
      every: About how many steps apart they are.
    """

    def __init__(self, every: int) -> None:
        self._every = self._now = every
        self._last_step = self._last_time = -1.0
        self._cost = 0.0

    def is_due(self, step: int, size: int) -> bool:
        """Return whether a snapshot is due before a step; so many bytes of batches were written since the last."""
        steps = step - self._last_step
        return self._last_step < 0 or steps >= self._now or (size >= _BYTES and steps >= min(_FEWEST, self._every))

    def taken(self, step: int, began: float) -> None:
        """Take into account that a snapshot was taken, and how long that took: large states are read less often."""
        now = time.perf_counter()
        if self._last_time >= 0.0 and step > self._last_step:
            cost, elapsed = now - began, now - self._last_time
            if cost > 2 * _SHARE * elapsed:
                self._now = min(2 * self._now, max(_MOST, self._every))
            elif cost < _SHARE * elapsed / 2:
                self._now = max(self._now // 2, self._every)
        self._last_step, self._last_time = step, now
