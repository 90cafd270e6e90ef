"""An append-only program under construction."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from retrotape.ir._check import check
from retrotape.ir._program import LEAF, Attr, Eqn, Frame, Program, TensorType


class Builder:
    """Collect vars and equations; `build` freezes and checks what there is so far.

    >>> builder = Builder()
    >>> x = builder.leaf(TensorType(1, ()))
    >>> y, = builder.define([TensorType(1, ())])
    >>> builder.append("Neg", (x,), (y,), ())
    >>> len(builder.build().eqns)
    1
    """

    __slots__ = ("_built", "_checked", "eqns", "producers", "types")

    def __init__(self) -> None:
        self.types: list[TensorType] = []
        self.producers: list[int] = []
        self.eqns: list[Eqn] = []
        self._built: Program | None = None
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

    def truncate(self, variables: int, equations: int) -> None:
        """Take back all but the first so many vars and equations."""
        del self.types[variables:], self.producers[variables:], self.eqns[equations:]
        self._built = None
        self._checked = (min(self._checked[0], equations), min(self._checked[1], variables))

    def build(self, frames: Callable[[], tuple[Frame, ...]] = tuple) -> Program:
        """Return the program so far, checked. Equations that were checked before are not checked again.

        The frames are asked for only here, since finding a line number costs more than recording an op.
        """
        built = self._built
        if built is None or len(built.eqns) != len(self.eqns) or len(built.types) != len(self.types):
            built = Program(tuple(self.types), tuple(self.producers), tuple(self.eqns), frames())
            check(built, *self._checked)
            self._checked = (len(self.eqns), len(self.types))
            self._built = built
        return built
