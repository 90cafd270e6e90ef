"""The first op at which the path from each of several sources ends: found in one pass, without reading values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from retrotape.diagnose.why._cuts import Cuts
from retrotape.diagnose.why._explanation import Step
from retrotape.diagnose.why._graph import SHAPES, Between
from retrotape.diagnose.why._verdicts import Verdict
from retrotape.errors import UnseenUpdateError
from retrotape.record import Trace

_NONE = frozenset(("Round", "Rint", "Floor", "Ceil", "FloorDiv"))  # whose gradient functions return None, always


class FirstCut(NamedTuple):
    """Where the path from a source ends, and what kind of op ends it."""

    verdict: Verdict
    step: Step

    def __str__(self) -> str:
        return f"{self.verdict.reason}: {self.step}"


def first_cuts(
    trace: Trace,
    targets: Sequence[int],
    sources: Sequence[Sequence[int]],
    through_updates: bool,
    since: int | None,
) -> list[FirstCut | None]:
    """Return for each source where its path to the targets ends; None if the ops alone do not show it."""
    between = Between(trace, targets, [var for source in sources for var in source], through_updates, since)
    try:
        plan = between.plan()
    except UnseenUpdateError:
        return [None] * len(sources)
    cuts = Cuts(between, plan, None, False, probe=False)
    places = _places(between, cuts.flowing, sources)
    found: list[FirstCut | None] = []
    for place in places:
        if place is None:
            found.append(None)
            continue
        returns_none = between.eqns[place].op in _NONE
        verdict = Verdict.RULE_RETURNED_NONE if returns_none else cuts.kind(place).verdict
        found.append(FirstCut(verdict, between.step(place)))
    return found


def _places(between: Between, flowing: set[int], sources: Sequence[Sequence[int]]) -> list[int | None]:
    """Return the equation at which the path from each source ends; a shape op only if there is no other."""
    bits: dict[int, int] = {}  # by var: which sources lead to it, as bits of a number
    for number, source in enumerate(sources):
        for var in source:
            bits[var] = bits.get(var, 0) | 1 << number
    found: list[int | None] = [None] * len(sources)
    for index in between.leading:
        eqn = between.eqns[index]
        arrived = 0
        for var in eqn.inputs:
            arrived |= bits.get(var, 0)
        if not arrived:
            continue
        ended = eqn.op in _NONE
        for var in eqn.outputs:
            if var in flowing and not ended:
                bits[var] = bits.get(var, 0) | arrived
            elif var in between.needed:
                _mark(found, arrived, index, between)
    return found


def _mark(found: list[int | None], arrived: int, index: int, between: Between) -> None:
    for number, known in enumerate(found):
        if not arrived >> number & 1:
            continue
        if known is None or (between.eqns[known].op in SHAPES and between.eqns[index].op not in SHAPES):
            found[number] = index
