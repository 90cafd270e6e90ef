"""Two tapes run side by side, op by op: what was kept stands for itself, all else is computed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from retrotape._types import Tensor
from retrotape.cli._distance import Distance, distance
from retrotape.cli._pairing import Pairing
from retrotape.cli._suspects import Pair, Suspects
from retrotape.cli._tape import SavedTape
from retrotape.files.load import read
from retrotape.ir import Eqn, slice_to


class Step(NamedTuple):
    """An equation of which a value differs.

    Attributes:
      equation: Its number.
      outputs: How far each of its outputs is apart; None where that cannot be known.
      differing: Those of its inputs, as vars of the first tape, that differ already.
    """

    equation: int
    outputs: list[Distance | None]
    differing: list[int]


class Rerun:
    """Runs what may differ on both tapes, and what that needs on the first one only.

    Args:
      first: A tape.
      second: Another of the same program.
      pairing: What the programs have in common.
      suspects: What may differ.
      compare: Says how far two arrays are apart.

    Attributes:
      distances: How far each pair of values is apart, as far as it was looked at; None where it cannot be known.
    """

    def __init__(
        self,
        first: SavedTape,
        second: SavedTape,
        pairing: Pairing,
        suspects: Suspects,
        compare: Callable[..., Distance] = distance,
    ) -> None:
        self._first, self._second = (_Side(tape) for tape in (first, second))
        self._open, self._compare = set(suspects.open), compare
        self._common = pairing.common
        self.distances: dict[Pair, Distance | None] = dict.fromkeys(suspects.unknown)
        for pair in pairing.leaves:
            if pair in suspects.differ:
                self.distances[pair] = self._apart(self._first.kept(pair[0]), self._second.kept(pair[1]))

    def steps(self) -> Iterator[Step]:
        """Yield every equation of which a value differs by more than is allowed, in order."""
        needed = self._first.needed_for(self._open, self._common)
        uses = Counter(var for index in needed for var in self._first.eqns[index].inputs)
        also = Counter(var for index in self._open for var in self._second.eqns[index].inputs)
        for index in sorted(needed):
            one, other = self._first.eqns[index], self._second.eqns[index]
            pairs = list(zip(one.inputs, other.inputs, strict=True))
            known = all(self.distances.get(pair, 0) is not None for pair in pairs)
            self._first.run(one, [self._first.value(var) for var in one.inputs] if known else None)
            if index in self._open:
                # What is the same on both tapes is there once.
                inputs = [
                    self._second.value(pair[1]) if pair in self.distances else self._first.value(pair[0])
                    for pair in pairs
                ]
                self._second.run(other, inputs if known else None)
                made = list(zip(one.outputs, other.outputs, strict=True))
                found = [self._note(pair) for pair in made]
                if any(apart is not None and apart.beyond for apart in found):
                    yield Step(index, found, [pair[0] for pair in pairs if self._differs(pair)])
                self._second.let_go(other, also)
            self._first.let_go(one, uses)

    def _differs(self, pair: Pair) -> bool:
        apart = self.distances.get(pair)
        return apart is not None and apart.beyond > 0

    def _note(self, pair: Pair) -> Distance | None:
        apart = self._apart(self._first.value(pair[0]), self._second.value(pair[1]))
        if apart is None or apart.elements:
            self.distances[pair] = apart
        else:
            self._first.share(pair, self._second)
        return apart

    def _apart(self, one: Tensor | None, other: Tensor | None) -> Distance | None:
        return None if one is None or other is None else self._compare(one.numpy(), other.numpy())


class _Side:
    """One tape and the values that are alive."""

    def __init__(self, tape: SavedTape) -> None:
        self._trace = read(tape.container.path).trace
        self._alive: dict[int, Tensor | None] = {}
        self.eqns = self._trace.program.eqns

    def kept(self, var: int) -> Tensor | None:
        """Return the value of a var that the file has."""
        return self._trace.value(var)

    def value(self, var: int) -> Tensor | None:
        """Return the value of a var; None where it cannot be known."""
        return self._alive[var] if var in self._alive else self.kept(var)

    def share(self, pair: Pair, other: _Side) -> None:
        """Let go of the other's value, which is the same."""
        other._alive.pop(pair[1], None)

    def needed_for(self, equations: set[int], common: int) -> set[int]:
        """Return these equations, and those that compute what they read."""
        wanted = [var for index in equations for var in self.eqns[index].inputs]
        kept = self._trace.values
        return equations | {index for index in slice_to(self._trace.program, wanted, kept) if index < common}

    def run(self, eqn: Eqn, inputs: list[Tensor | None] | None) -> None:
        """Compute what an equation gives, but for what was kept."""
        guard, types = self._trace.guard, self._trace.program.types
        missing = [var for var in eqn.outputs if var not in self._trace.values]
        if not missing:
            return
        if inputs is None or any(value is None for value in inputs):
            self._alive.update(dict.fromkeys(missing))
            return
        made = guard.run(eqn, inputs, types)
        self._alive.update((var, value) for var, value in zip(eqn.outputs, made, strict=False) if var in missing)

    def let_go(self, eqn: Eqn, uses: Counter[int]) -> None:
        """Drop what no equation to come reads."""
        uses.subtract(eqn.inputs)
        for var in (*eqn.inputs, *eqn.outputs):
            if uses[var] <= 0:
                self._alive.pop(var, None)
