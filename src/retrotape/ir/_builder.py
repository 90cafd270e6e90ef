"""An append-only program under construction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retrotape.ir._check import check
from retrotape.ir._facts import GrowingFacts
from retrotape.ir._program import LEAF, Attr, Eqn, Frame, Program, TensorType
from retrotape.ir._window import Window


class Builder:
    """Columns to which vars, equations and facts are appended; existing items never change.

    Args:
      base: A program to start from, which is not changed.
      frames: The lines of the equations, which may grow too.
      facts: What is known already; a copy of what is known about `base`, if it is not given.

    Attributes:
      program: The columns as a read-only program that grows with them; a `snapshot` does not grow.

    >>> builder = Builder()
    >>> x = builder.leaf(TensorType(1, ()))
    >>> y, = builder.define([TensorType(1, ())])
    >>> builder.append("Neg", (x,), (y,), ())
    >>> len(builder.snapshot().eqns)
    1
    """

    __slots__ = ("_checked", "_snapshot", "eqns", "facts", "producers", "program", "types")

    def __init__(
        self, base: Program | None = None, frames: Sequence[Frame] = (), facts: GrowingFacts | None = None
    ) -> None:
        self.types: list[TensorType] = [] if base is None else list(base.types)
        self.producers: list[int] = [] if base is None else list(base.producers)
        self.eqns: list[Eqn] = [] if base is None else list(base.eqns)
        self.facts = facts or (GrowingFacts() if base is None else base.facts.copy())
        self.program = Program(self.types, self.producers, self.eqns, frames, self.facts)
        self._snapshot: Program | None = None
        self._checked = (0, 0)

    def leaf(self, kind: TensorType) -> int:
        """Add a var whose value comes from outside."""
        self.types.append(kind)
        self.producers.append(LEAF)
        return len(self.types) - 1

    def define(self, kinds: Iterable[TensorType]) -> tuple[int, ...]:
        """Add the vars that the next equation will define."""
        first = len(self.types)
        self.types.extend(kinds)
        count = len(self.types)
        self.producers.extend([len(self.eqns)] * (count - first))
        return tuple(range(first, count))

    def append(
        self,
        op: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        attrs: tuple[Attr, ...],
        frame: int = 0,
    ) -> None:
        """Add the equation that defines `outputs`."""
        self.eqns.append(Eqn(op, inputs, outputs, attrs, frame))

    def sizes(self) -> tuple[int, int, int]:
        """Return how many vars, equations and frames there are."""
        return min(len(self.types), len(self.producers)), len(self.eqns), len(self.program.frames)

    def snapshot(self) -> Program:
        """Return the program so far, checked: fixed views of the columns, and a copy of the facts.

        Equations that were checked before are not checked again.
        """
        found, frames, sizes = self._snapshot, self.program.frames, self.sizes()
        if found is None or (len(found.types), len(found.eqns), len(found.frames)) != sizes:
            found = Program(
                Window(self.types, sizes[0]),
                Window(self.producers, sizes[0]),
                Window(self.eqns, sizes[1]),
                Window(frames, sizes[2]),
                self.facts.copy(),
            )
            check(found, *self._checked)
            self._checked, self._snapshot = (sizes[1], sizes[0]), found
        return found
