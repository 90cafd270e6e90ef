"""A compiled step gives what eager code gives, whatever Python state changes between calls, and however it is read."""

from __future__ import annotations

import pytest

from playback import state_kinds, state_kinds_of_libraries
from playback.state_kinds import WAYS
from playback.state_programs import check

KINDS = [*state_kinds.KINDS, *state_kinds_of_libraries.KINDS]
PARTS = 16  # of all programs; the first takes a minute


def test_there_are_many() -> None:
    assert sum(max(1, len(kind.changes)) for kind in KINDS) * len(WAYS) > 4000


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda number: KINDS[number].name)
def test_state_that_changes(number: int, part: int) -> None:
    kind = KINDS[number]
    for position, way in enumerate(WAYS):
        if (number + position) % PARTS == part:
            check(kind, way, is_global=(len(kind.name) + position) % 2 == 0)
