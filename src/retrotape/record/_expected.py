"""Where the ops of a block run: probably where they ran the last time."""

from __future__ import annotations

from retrotape._types import Place
from retrotape.record._calls import Calls
from retrotape.record._frames import Spot, here, is_at, spot_of

MOST_SPOTS = 20_000
_OUTSIDE = 4  # frames from `here` past `_place`, `on_op` and the hook to TensorFlow's own code


class ExpectedPlaces(Calls):
    """Finds the place in user code that runs an op, fast if it is the one expected."""

    def __init__(self) -> None:
        super().__init__()
        self._spots: list[Spot | None] = []  # where the ops of a block ran the last time
        self.number = 0  # ops since the block began

    def _reset(self) -> None:
        super()._reset()
        self._spots = []

    def expect(self, spots: list[Spot | None], number: int = 0) -> tuple[list[Spot | None], int]:
        """Set where ops from a number on probably run, a list that they update; return what was set before."""
        before = self._spots, self.number
        self._spots, self.number = spots, number
        return before

    def _place(self) -> Place:
        """Return the place in user code that runs an op: probably where the op of that number ran the last time."""
        number, self.number = self.number, self.number + 1
        if number < len(self._spots):
            spot = self._spots[number]
            if spot is not None and is_at(spot):
                return spot.place
        place = here(_OUTSIDE)
        if number <= len(self._spots) < MOST_SPOTS:
            self._spots[number : number + 1] = [None if place is None else spot_of(place)]
        return place
