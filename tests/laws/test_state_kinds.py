"""A compiled step gives what eager code gives, whatever Python state changes between calls, and however it is read."""

from __future__ import annotations

import pytest

from playback.state_kinds import KINDS, WAYS
from playback.state_programs import check

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def test_there_are_many() -> None:
    assert sum(max(1, len(kind.changes)) for kind in KINDS) * len(WAYS) > 400


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_state_that_changes(kind, way) -> None:
    check(kind, way, is_global=len(kind.name) % 2 == 0)
