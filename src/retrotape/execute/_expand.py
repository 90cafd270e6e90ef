"""A program in which some calls are replaced by what ran inside, where a query is about a value that they assigned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape.execute._inline import inline
from retrotape.execute._values import Values
from retrotape.ir import Eqn, Equations, slice_to
from retrotape.record import Recording

_FIRST = 1 << 40  # indices from here on are of equations that only a plan knows


class View(NamedTuple):
    """The equations of a recording as a plan sees them.

    Attributes:
      program: The equations and which of them makes each var.
      renamed: For values that an expanded call has left in variables, the vars that they have inside.
      rank: Where an equation stands among those that ran, if not where its index says.
    """

    program: Equations
    renamed: Mapping[int, int] = {}
    rank: Callable[[int], Any] | None = None

    def sorted(self, indices: list[int]) -> list[int]:
        """Return indices in an order in which each equation follows those that make its inputs."""
        return indices if self.rank is None else sorted(indices, key=self.rank)


class _Expanded:
    """Equations with a few more: what a call gave is made by an `Identity` of what ran inside."""

    def __init__(self, recording: Recording) -> None:
        self._builder = recording.builder
        self._more: list[Eqn] = []
        self._makers: dict[int, int] = {}

    @property
    def eqns(self) -> Any:
        return self._Items(lambda index: self._more[index - _FIRST] if index >= _FIRST else self._builder.eqns[index])

    @property
    def producers(self) -> Any:
        return self._Items(lambda var: self._makers.get(var, self._builder.producers[var]))

    class _Items:
        def __init__(self, get: Callable[[int], Any]) -> None:
            self._get = get

        def __getitem__(self, index: int) -> Any:
            return self._get(index)

    def add(self, made: int, inner: int, frame: int) -> int:
        """Let `made` be what `inner` is."""
        index = _FIRST + len(self._more)
        self._more.append(Eqn("Identity", (inner,), (made,), (), frame))
        self._makers[made] = index
        return index


def expand(
    recording: Recording, targets: Sequence[int], wanted: Collection[int], inputs_of: Callable[[Eqn], Sequence[int]]
) -> View:
    """Look into the calls that assigned one of the `wanted` values and whose other outputs lead to the targets.

    What a call returns may have been read from a variable after the call has assigned it. Seen from outside, no path
    leads from the one to the other.
    """
    plain = View(recording.builder)
    assigning = [index for index in recording.calls if not wanted.isdisjoint(recording.builder.eqns[index].outputs)]  # type: ignore[attr-defined]
    if not assigning:
        return plain
    calls = _needed(recording, targets, wanted, set(assigning), inputs_of)
    if not calls:
        return plain
    expanded, ranks, renamed = _Expanded(recording), {}, {}
    for index in calls:
        eqn = recording.builder.eqns[index]
        where = str(recording.frames.frame(eqn.frame))
        body = inline(recording, eqn, recording.calls[index], Values(recording), where)
        ranks.update({inner: (index, 1, inner) for inner in range(*body.span)})
        for made, inner in body.pairs(recording, eqn):
            ranks[expanded.add(made, inner, eqn.frame)] = (index, 2, 0)
            if made in recording.cell_of and recording.builder.producers[inner] in range(*body.span):
                renamed[made] = inner
    return View(expanded, renamed, lambda index: ranks.get(index, (index, 0, 0)))


def _needed(
    recording: Recording,
    targets: Iterable[int],
    wanted: Collection[int],
    calls: set[int],
    inputs_of: Callable[[Eqn], Sequence[int]],
) -> list[int]:
    """Return the calls of which the targets need something besides the wanted values."""
    eqns, targets = recording.builder.eqns, list(targets)
    indices = slice_to(recording.builder, targets, (), inputs_of)
    used = {var for index in indices for var in inputs_of(eqns[index])}.union(targets)
    return [
        index
        for index in indices
        if index in calls and any(var in used and var not in wanted for var in eqns[index].outputs)
    ]
