"""Each kind of Python state is compared, or the step is refused; `tests/laws/test_state_kinds.py` tries all."""

from __future__ import annotations

import pytest

from playback import state_kinds, state_kinds_of_libraries
from playback.state_kinds import WAYS
from playback.state_programs import check

pytestmark = pytest.mark.filterwarnings("ignore")
KINDS = [*state_kinds.KINDS, *state_kinds_of_libraries.KINDS]


@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda number: KINDS[number].name)
def test_a_kind_in_some_ways(number: int) -> None:
    check(KINDS[number], WAYS[0], is_global=number % 2 == 0)
    check(KINDS[number], WAYS[1 + number % (len(WAYS) - 1)], is_global=number % 2 == 1)
