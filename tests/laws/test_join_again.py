"""Joins that come again: the program that is known is the one that copying gives, and so are all answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from helpers.seeds import seeds
from helpers.warm import forgetful
from laws.join_programs import WARM, run
from retrotape.transform import _joint
from retrotape.transform._join import Joiner
from retrotape.transform._known_joins import Sharing, is_same

STEPS = 6 * WARM


@pytest.fixture
def known(monkeypatch: Any) -> Iterator[list[int]]:
    """Compare each join whose program is known with a copy; list how many equations they had."""
    found: list[int] = []
    known_join = _joint.known_join

    def checked(given: Sharing) -> Any:
        joined = known_join(given)
        if joined is not None:
            joiner = Joiner(given.traces)
            joiner.add_all()
            assert is_same(joined, joiner.joined)
            found.append(len(given.times))
        return joined

    monkeypatch.setattr(_joint, "known_join", checked)
    with forgetful():
        yield found


@pytest.mark.parametrize("seed", seeds())
def test_a_join_that_comes_again_is_the_same(seed: int, known: list[int]):
    cold = run(seed, STEPS, False)
    assert not known
    assert run(seed, STEPS, True) == cold
    assert run(seed, STEPS, "always") == cold


def test_most_joins_of_separate_tapes_are_known(known: list[int]):
    for seed in range(0, 8, 2):
        run(seed, STEPS, True)
    assert len(known) > STEPS // 2
