"""Which equations a question concerns: those between its sources and its targets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from retrotape.ir import Eqn, reached_from, slice_to
from retrotape.record import Recording


class Plan(NamedTuple):
    """The equations to go back through, and the vars for which a cotangent is wanted at all."""

    eqns: Sequence[Eqn]
    indices: list[int]
    reached: set[int]
    sources: frozenset[int]
    stops: Collection[int]  # vars that paths may start from but do not pass


def make_plan(
    recording: Recording,
    targets: Iterable[int],
    sources: Iterable[int],
    through_updates: bool,
    since: int | None = None,
) -> Plan:
    """Return the plan for the gradients of `targets` by `sources`.

    Without `through_updates` an assignment ends every path, as it does on the stock tape: what a variable
    was given is then a place where paths may start, not a place that they pass. With `since`, that holds for
    value number `since` of each variable, and for none after it.
    """
    builder = recording.builder
    stops: Collection[int]
    if not through_updates:
        stops = recording.assigned
    elif since is None:
        stops = frozenset()
    else:
        stops = frozenset(cell.number(since) for cell in recording.cells.values())
    wanted = frozenset(sources) - recording.inert
    indices = slice_to(builder, targets, stops)
    kept, reached = reached_from(builder, wanted, indices, (recording.inert, recording.ends, stops))
    return Plan(builder.eqns, kept, reached, wanted, stops)
