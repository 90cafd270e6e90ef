"""Which values of two tapes may differ, told from check sums alone: no tensor is read and no op runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from retrotape.cli._pairing import Pairing
from retrotape.cli._tape import SavedTape

Pair = tuple[int, int]  # a var of the first tape and its counterpart


class Suspects(NamedTuple):
    """What has to be looked at.

    Attributes:
      differ: Pairs of kept values with different check sums, or of which only one tape kept its own.
      unknown: Pairs of leaves of which a tape has no value, since it was redacted.
      open: The equations whose values may therefore differ, in order.
    """

    differ: set[Pair]
    unknown: set[Pair]
    open: list[int]


def suspects(first: SavedTape, second: SavedTape, pairing: Pairing) -> Suspects:
    """Compare the check sums of everything that two tapes keep."""
    differ: set[Pair] = set()
    unknown: set[Pair] = set()
    for a, b in pairing.leaves:
        one, other = first.kept(a), second.kept(b)
        if one is None or other is None:
            unknown.add((a, b))
        elif one.sha256 != other.sha256:
            differ.add((a, b))
    for a, b in pairing.outputs.items():
        one, other = first.kept(a), second.kept(b)
        if (one and one.sha256) != (other and other.sha256):
            differ.add((a, b))
    return Suspects(differ, unknown, list(_reached(first, second, pairing, differ | unknown)))


def _reached(first: SavedTape, second: SavedTape, pairing: Pairing, touched: set[Pair]) -> Iterable[int]:
    for index in range(pairing.common):
        one, other = first.program.eqns[index], second.program.eqns[index]
        made = list(zip(one.outputs, other.outputs, strict=True))
        if not touched.isdisjoint(zip(one.inputs, other.inputs, strict=True)):
            # What both kept with the same check sum is the same, whatever it was made of.
            touched.update(pair for pair in made if pair in touched or not first.kept(pair[0]))
            yield index
        elif not touched.isdisjoint(made):
            yield index
