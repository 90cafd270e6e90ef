"""Reachability in a program: which equations lead to the targets, and which of them depend on a source."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from retrotape.ir._program import CUSTOM, Eqn


class Equations(Protocol):
    """What reachability needs: a `Program`, or a `Builder` whose program is still growing."""

    @property
    def producers(self) -> Sequence[int]:
        """For each var, the index of the equation that defines it, or `LEAF`."""

    @property
    def eqns(self) -> Sequence[Eqn]:
        """The equations in the order in which they ran."""


def differentiable_inputs(eqn: Eqn) -> Sequence[int]:
    """Return the inputs of an equation that gradients flow to: not the results of the body of a custom gradient."""
    return eqn.inputs[: len(eqn.inputs) - len(eqn.outputs)] if eqn.op == CUSTOM else eqn.inputs


def slice_to(
    program: Equations,
    targets: Iterable[int],
    stops: Collection[int] = (),
    differentiable: bool = False,
) -> list[int]:
    """Return the equations that the targets depend on, in order; nothing is followed past `stops`.

    With `differentiable`, only paths count that a gradient can take.
    """
    producers, eqns = program.producers, program.eqns
    seen: set[int] = set()
    pending = [producers[var] for var in targets if var not in stops]
    while pending:
        index = pending.pop()
        if index < 0 or index in seen:
            continue
        seen.add(index)
        eqn = eqns[index]
        for var in differentiable_inputs(eqn) if differentiable and eqn.op == CUSTOM else eqn.inputs:
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
    """Return the equations among `indices` that depend on a source, and every var that a source reaches.

    A var in one of the sets `blocked` is reached only where it is itself a source.
    """
    reached = set(sources)
    kept = []
    eqns = program.eqns
    for index in indices:
        eqn = eqns[index]
        if not reached.isdisjoint(eqn.inputs):
            found = list(eqn.outputs)
            for block in blocked:
                found = [var for var in found if var not in block]
            if found:
                kept.append(index)
                reached.update(found)
    return kept, reached
