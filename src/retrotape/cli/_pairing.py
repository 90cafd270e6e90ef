"""Two programs side by side: which equations are the same, which leaves take the same places, where they part."""

from __future__ import annotations

from typing import NamedTuple

from retrotape.ir import LEAF, Eqn, Program


class Parting(NamedTuple):
    """Where two programs cease to be the same: the number of the equation, and in what it differs."""

    equation: int
    reason: str


class Pairing(NamedTuple):
    """What two programs have in common.

    Attributes:
      common: How many equations are the same, from the first one on.
      leaves: Pairs of leaves that take the same places, in the order of their first use. A leaf can be in several:
        where one program used a tensor twice, the other may have used two.
      outputs: For each var that the common equations compute in the first program, that of the second.
      parting: The first equation that differs; None where all are the same.
    """

    common: int
    leaves: list[tuple[int, int]]
    outputs: dict[int, int]
    parting: Parting | None


_SEEDS = {"seed", "seed2"}  # of a draw; what was drawn is compared as a value


def pair(first: Program, second: Program) -> Pairing:
    """Compare two programs, whatever their vars are numbered."""
    leaves: dict[tuple[int, int], None] = {}
    outputs: dict[int, int] = {}
    for index, (one, other) in enumerate(zip(first.eqns, second.eqns, strict=False)):
        reason = _difference(first, second, one, other, outputs)
        if reason:
            return Pairing(index, list(leaves), outputs, Parting(index, reason))
        for a, b in zip(one.inputs, other.inputs, strict=True):
            if first.producers[a] == LEAF:
                leaves[a, b] = None
        outputs.update(zip(one.outputs, other.outputs, strict=True))
    shorter, longer = sorted((len(first.eqns), len(second.eqns)))
    parting = Parting(shorter, f"one has {longer - shorter} more") if longer > shorter else None
    return Pairing(shorter, list(leaves), outputs, parting)


def _difference(first: Program, second: Program, one: Eqn, other: Eqn, outputs: dict[int, int]) -> str:
    """Say in what two equations differ; "" if in nothing but values."""
    if one.op != other.op:
        return f"another op: {one.op} and {other.op}"
    names = sorted({name for name, _ in set(one.attrs) ^ set(other.attrs)} - _SEEDS)
    if names:
        return f"other attributes: {', '.join(names)}"
    if len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
        return "another number of inputs or outputs"
    for number, (a, b) in enumerate(zip(one.inputs, other.inputs, strict=True)):
        if first.producers[a] == LEAF and second.producers[b] == LEAF:
            if first.types[a] != second.types[b]:
                return f"input {number} is {first.types[a]} and {second.types[b]}"
        elif outputs.get(a) != b:
            return f"input {number} comes from another place"
    for a, b in zip(one.outputs, other.outputs, strict=True):
        if first.types[a] != second.types[b]:
            return f"its output is {first.types[a]} and {second.types[b]}"
    return ""
