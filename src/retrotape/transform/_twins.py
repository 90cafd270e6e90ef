"""Equations that several workers have computed alike, from the same values by the same op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from retrotape.ir import Eqn

Names = tuple[frozenset[str], ...]


class _Named(NamedTuple):
    """An equation of the joined trace, and the names that the first worker has for its outputs; None for none."""

    eqn: Eqn
    names: Names | None


class Twins:
    """Finds, for an equation of another worker, the one of the first worker that computes the same.

    Args:
      named: For each worker, the vars that have names.
    """

    def __init__(self, named: Sequence[Mapping[int, frozenset[str]]]) -> None:
        self._named = named
        self._known: dict[Any, list[_Named]] = {}  # by what they compute: those of the first worker, in order
        # For each worker: how many of these it has seen, and which of them it has not matched yet.
        self._left: list[dict[Any, tuple[int, list[_Named]]]] = [{} for _ in named]

    def add(self, key: Any, eqn: Eqn, outputs: Sequence[int]) -> None:
        """Add an equation of the joined trace, which stands for one of the first worker with these outputs."""
        self._known.setdefault(key, []).append(_Named(eqn, self._names_of(0, outputs)))

    def take(self, worker: int, key: Any, outputs: Sequence[int]) -> Eqn | None:
        """Return the next equation that computes the same, and whose outputs have the same names; each once.

        Two equations of one worker may compute the same: by name a query tells their outputs apart.
        """
        known = self._known.get(key)
        if known is None:
            return None
        seen, left = self._left[worker].get(key, (0, []))
        left += known[seen:]
        self._left[worker][key] = len(known), left
        names = self._names_of(worker, outputs)
        at = next((at for at, one in enumerate(left) if one.names == names), None)
        if at is None and left and names is None:  # only the first worker has named it
            at = 0
        return None if at is None else left.pop(at).eqn

    def _names_of(self, worker: int, outputs: Sequence[int]) -> Names | None:
        found = self._named[worker]
        return tuple(found.get(var, frozenset()) for var in outputs) if any(var in found for var in outputs) else None
