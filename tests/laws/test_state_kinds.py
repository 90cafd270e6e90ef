"""A compiled step gives what eager code gives, whatever Python state changes between calls, and however it is read."""

from __future__ import annotations

import pytest

from playback import state_kinds, state_kinds_of_libraries
from playback.state_kinds import WAYS, Kind
from playback.state_programs import check

KINDS = [*state_kinds.KINDS, *state_kinds_of_libraries.KINDS]


def test_there_are_many() -> None:
    assert sum(max(1, len(kind.changes)) for kind in KINDS) * len(WAYS) > 4000


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_state_that_changes(kind: Kind) -> None:
    for number, way in enumerate(WAYS):
        check(kind, way, is_global=(len(kind.name) + number) % 2 == 0)
