"""Aligns two programs: the equations that they have in common, and which of their values may differ."""

from __future__ import annotations

from typing import NamedTuple

from retrotape.cli._tape import SavedTape
from retrotape.ir import LEAF, Eqn, Program

Pair = tuple[int, int]  # a var of the first program and its counterpart in the second
_SEEDS = {"seed", "seed2"}  # attributes of a random op, whose outputs are compared instead


class Alignment(NamedTuple):
    """What two programs have in common, and how they diverge."""

    eqns: list[tuple[list[Pair], list[Pair]]]  # inputs and outputs of each equation before the first that differs
    leaves: list[Pair]  # in order of first use; one var may be the counterpart of two
    reason: str  # how the next equation differs; "" where both programs end


def align(first: Program, second: Program) -> Alignment:
    """Pair the equations of two programs, independent of how their vars are numbered."""
    eqns, computed = [], dict[int, int]()
    for one, other in zip(first.eqns, second.eqns, strict=False):
        reason = _difference(first, second, one, other, computed)
        if reason:
            break
        outputs = list(zip(one.outputs, other.outputs, strict=True))
        eqns.append((list(zip(one.inputs, other.inputs, strict=True)), outputs))
        computed.update(outputs)
    else:
        more = abs(len(first.eqns) - len(second.eqns))
        reason = f"one has {more} more" if more else ""
    leaves = dict.fromkeys(pair for inputs, _ in eqns for pair in inputs if pair[0] not in computed)
    return Alignment(eqns, list(leaves), reason)


def _difference(first: Program, second: Program, one: Eqn, other: Eqn, computed: dict[int, int]) -> str:
    """Return how two equations differ; "" if only in values."""
    if one.op != other.op:
        return f"another op: {one.op} and {other.op}"
    names = {name for name, _ in set(one.attrs) ^ set(other.attrs)} - _SEEDS
    if names:
        return f"other attributes: {', '.join(sorted(names))}"
    if len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
        return "another number of inputs or outputs"
    for number, (a, b) in enumerate(zip(one.inputs, other.inputs, strict=True)):
        if computed.get(a) != b and not first.producers[a] == second.producers[b] == LEAF:
            return f"input {number} comes from another place"
        if first.types[a] != second.types[b]:
            return f"input {number} is {first.types[a]} and {second.types[b]}"
    for a, b in zip(one.outputs, other.outputs, strict=True):
        if first.types[a] != second.types[b]:
            return f"its output is {first.types[a]} and {second.types[b]}"
    return ""


class Suspects(NamedTuple):
    """What may differ, judging by the checksums of kept values: no tensor is read and no op runs."""

    unknown: list[Pair]  # one of the tapes has lost the value
    differ: set[Pair]  # checksums differ, or only one tape keeps the value
    eqns: set[int]  # the equations whose outputs may therefore differ


def find_suspects(first: SavedTape, second: SavedTape, alignment: Alignment) -> Suspects:
    """Compare the checksums of all values that two tapes keep."""
    pairs = [*alignment.leaves, *(pair for _, outputs in alignment.eqns for pair in outputs)]
    unknown = [(a, b) for a, b in pairs if a in first.lost or b in second.lost]
    differ = {(a, b) for a, b in pairs if first.check_sum(a) != second.check_sum(b)}.difference(unknown)
    touched, eqns = differ.union(unknown), set()
    for index, (inputs, outputs) in enumerate(alignment.eqns):
        if not touched.isdisjoint(inputs):
            # Values that both keep with the same checksum are equal, whatever they were computed from.
            touched.update(pair for pair in outputs if first.check_sum(pair[0]) is None)
        if not touched.isdisjoint(inputs + outputs):
            eqns.add(index)
    return Suspects(unknown, differ, eqns)
