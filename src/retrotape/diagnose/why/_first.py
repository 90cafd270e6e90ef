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
    never = len(between.eqns)
    # By var: the first equation behind it at which a path ends, and the first of those that are shape ops.
    first: dict[int, tuple[int, int]] = {}
    for index in reversed(between.leading):
        eqn = between.eqns[index]
        passes = [var for var in eqn.outputs if var in flowing and eqn.op not in _NONE]
        ends = [first[var] for var in passes if var in first]
        if any(var in between.needed and var not in passes for var in eqn.outputs):
            ends.append((never, index) if eqn.op in SHAPES else (index, never))
        if ends:
            for var in eqn.inputs:
                first[var] = _earliest([*ends, first.get(var, (never, never))])
    found = [_earliest([first.get(var, (never, never)) for var in source]) for source in sources]
    return [None if min(places) == never else places[0] if places[0] < never else places[1] for places in found]


def _earliest(places: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min(ordinary for ordinary, _ in places), min(shape for _, shape in places)
