"""Reachability in a program: which equations lead to the targets, and which of them see a source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from retrotape.ir._program import Eqn


class Equations(Protocol):
    """What reachability needs: a `Program`, or a `Builder` whose program is still growing."""

    @property
    def producers(self) -> Sequence[int]:
        """For each var, the index of the equation that defines it, or `LEAF`."""

    @property
    def eqns(self) -> Sequence[Eqn]:
        """The equations in the order in which they ran."""


def all_inputs(eqn: Eqn) -> Sequence[int]:
    """Return the inputs of an equation."""
    return eqn.inputs


def slice_to(
    program: Equations,
    targets: Iterable[int],
    stops: Collection[int] = (),
    inputs_of: Callable[[Eqn], Sequence[int]] = all_inputs,
) -> list[int]:
    """Return the equations that the targets depend on by `inputs_of`, in order; nothing is followed past `stops`."""
    producers, eqns = program.producers, program.eqns
    seen: set[int] = set()
    pending = [producers[var] for var in targets if var not in stops]
    while pending:
        index = pending.pop()
        if index < 0 or index in seen:
            continue
        seen.add(index)
        for var in inputs_of(eqns[index]):
            producer = producers[var]
            if producer >= 0 and producer not in seen and var not in stops:
                pending.append(producer)
    return sorted(seen)


def reached_from(
    program: Equations,
    sources: Iterable[int],
    indices: Iterable[int],
    blocked: Sequence[Collection[int]] = (),
) -> tuple[list[int], set[int]]:
    """Return those of the equations that carry a source on, and every var that it reaches.

    A var in one of the sets `blocked` is reached only where it is itself a source.
    """
    reached = set(sources)
    kept = []
    eqns = program.eqns
    for index in indices:
        eqn = eqns[index]
        if not reached.isdisjoint(eqn.inputs):
            found = [var for var in eqn.outputs if not any(var in block for block in blocked)]
            if found:
                kept.append(index)
                reached.update(found)
    return kept, reached
