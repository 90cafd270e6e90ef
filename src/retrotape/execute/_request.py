"""A request as it was made: targets, and sources of both kinds in the order in which they came."""

from __future__ import annotations

from typing import Any, NamedTuple

from retrotape.execute._question import Question
from retrotape.tf.nests import Fitted

Tensor = Any


class Request(NamedTuple):
    """A question as it was posed: the targets, and sources of both kinds in the order in which they came."""

    targets: tuple[int, ...]
    seeds: tuple[Tensor | Fitted, ...]
    sources: tuple[tuple[int, ...], ...]
    through: tuple[bool, ...]
    since: int | None
    derived_from: tuple[Request, ...] = ()  # where targets are answers: what was asked
    outside: tuple[tuple[int, ...], ...] = ()  # in a graph: the sources as the same tape knows them from eager code
    left_out: tuple[Any, ...] = ()  # targets of a dtype without derivative

    def flowing(self) -> tuple[Tensor, ...]:
        """Return what flows into the targets, in their shapes."""
        return tuple(seed.tensor() if isinstance(seed, Fitted) else seed for seed in self.seeds)

    def questions(self) -> list[tuple[list[int], Question]]:
        """Return one question for sources that end at assignments and one for those that do not."""
        kinds = []
        seeds = self.flowing()
        for through in (False, True):
            positions = [position for position, kind in enumerate(self.through) if kind is through]
            if positions:
                chosen = tuple(self.sources[position] for position in positions)
                kinds.append((positions, Question(self.targets, seeds, chosen, through, self.since)))
        return kinds
