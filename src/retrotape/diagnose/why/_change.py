"""The ops that a gradient comes along, and where along them its size changes most."""

from __future__ import annotations

from collections.abc import Sequence

from retrotape.diagnose.why._graph import Between
from retrotape.diagnose.why._walk import Walked, norm
from retrotape.execute import Plan


def live_path(between: Between, plan: Plan, walked: Walked, cut: int | None = None) -> list[int]:
    """Return equations that lead from the source to a target, by way of `cut` if there is one.

    From the cut on, or all along if there is none, they pass on more than zeros, where there is such a way.
    """
    idle = walked.idle()

    def way(starts: Sequence[int], goals: Sequence[int], first: set[tuple[int, int]]) -> list[int]:
        found = between.path(starts, goals, within=plan.reached, dead=first)
        return found or between.path(starts, goals, within=plan.reached, dead=walked.dead)

    if cut is None:
        return way(between.sources, between.targets, idle)
    eqn = between.eqns[cut]
    before = way(between.sources, [var for var in eqn.inputs if var in plan.reached], walked.dead)
    return [*before, cut, *way(eqn.outputs, between.targets, idle)]


def largest_change(between: Between, walked: Walked, path: Sequence[int]) -> str:
    """Say where along a path the norm of the gradient changed most: of what arrived at an op, and what it passed on."""
    best, text = 1.0, ""
    came = set(between.sources)
    for index in path:
        eqn = between.eqns[index]
        if index in walked.seen:
            before = norm(walked.seen[index][0])
            after = norm([walked.passed(index, var) for var in came.intersection(eqn.inputs)])
            change = max(after / before, before / after) if before > 0.0 and after > 0.0 else 1.0
            if change > best:
                best, text = change, f" It changes most at {between.step(index)}: {before:.3g} → {after:.3g}."
        came = set(eqn.outputs)
    return text
