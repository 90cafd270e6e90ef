"""The ops on the path of a gradient, and where along the path its norm changes most."""

from __future__ import annotations

from collections.abc import Sequence

from retrotape.diagnose.why._graph import Between
from retrotape.diagnose.why._walk import Walked, norm
from retrotape.execute import Plan


def live_path(between: Between, plan: Plan, walked: Walked, cut: int | None = None) -> list[int]:
    """Return equations that lead from the source to a target, through `cut` if there is one.

    From the cut on, or everywhere if there is none, they pass on more than zeros, if there is such a path.
    """
    idle = walked.idle()

    def find(starts: Sequence[int], goals: Sequence[int], first: set[tuple[int, int]]) -> list[int]:
        found = between.path(starts, goals, within=plan.reached, dead=first)
        return found or between.path(starts, goals, within=plan.reached, dead=walked.dead)

    if cut is None:
        return find(between.sources, between.targets, idle)
    eqn = between.eqns[cut]
    before = find(between.sources, [var for var in eqn.inputs if var in plan.reached], walked.dead)
    return [*before, cut, *find(eqn.outputs, between.targets, idle)]


def largest_change(between: Between, walked: Walked, path: Sequence[int]) -> str:
    """Return where along a path the norm changed most: of an op's incoming gradient, and of the one it passed on."""
    best, text = 1.0, ""
    came = set(between.sources)
    for index in path:
        eqn = between.eqns[index]
        seen = walked.seen.get(index)
        if seen is not None:
            before = norm(seen.given)
            after = norm(seen.passed.get(var) for var in came.intersection(eqn.inputs))
            change = max(after / before, before / after) if before > 0.0 and after > 0.0 else 1.0
            if change > best:
                best, text = change, f" It changes most at {between.step(index)}: {before:.3g} → {after:.3g}."
        came = set(eqn.outputs)
    return text
