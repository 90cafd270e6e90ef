"""Unique times for everything in a trace whose calls were inlined, and the calls of layers inside functions."""

from __future__ import annotations

from collections.abc import Sequence

from retrotape.ir import GrowingFacts, LayerCall
from retrotape.record import Chain, next_time


def order_times(facts: GrowingFacts, times: list[int], chains: Sequence[Chain | None] = ()) -> None:
    """Give each equation, host read and layer call a unique time, in execution order.

    Args:
      facts: The facts.
      times: When each equation ran; those inside a function have the time of the call.
      chains: For each equation inside a function, the calls of layers there that it belongs to.
    """
    calls = list(facts.layer_calls.values())
    events = [(time, 0, number) for number, time in enumerate(times)]
    events += [(read.time, 1, number) for number, read in enumerate(facts.host_reads)]
    events += [(call.begin, 2, number) for number, call in enumerate(calls)]
    events += [(call.end, 3, number) for number, call in enumerate(calls)]
    now: dict[tuple[int, int], int] = {}
    traced, inside = _TracedCalls(), _completed(chains, times) if chains else ()
    for time, kind, number in sorted(events):
        if kind > 1:
            traced.enter((), time)
            traced.move(calls[number].path, ends=kind == 3)
        elif kind == 0 and inside:
            traced.enter(inside[number], time)
        now[kind, number] = next_time()
    traced.enter((), 0)
    facts.times[:] = [now[0, number] for number in range(len(times))]
    facts.host_reads[:] = [read._replace(time=now[1, number]) for number, read in enumerate(facts.host_reads)]
    moved = [call._replace(begin=now[2, number], end=now[3, number]) for number, call in enumerate(calls)]
    facts.layer_calls.clear()
    facts.layer_calls.update((call.begin, call) for call in (*moved, *traced.found))


def _completed(chains: Sequence[Chain | None], times: Sequence[int]) -> list[Chain | None]:
    """Return the same where an op of no layer that runs between ops of one call of a layer belongs to that call.

    TensorFlow adds such ops to a function after it was traced, for the gradient of a loop.
    """
    following: list[Chain] = [()] * len(chains)
    found: list[Chain | None] = []
    after: tuple[int, Chain] = (-1, ())
    for number in reversed(range(len(chains))):
        if chains[number]:
            after = times[number], chains[number] or ()
        following[number] = after[1] if after[0] == times[number] else ()
    before: tuple[int, Chain] = (-1, ())
    for chain, time, next_chain in zip(chains, times, following, strict=True):
        if chain == ():
            chain = _common(before[1] if before[0] == time else (), next_chain)
        elif chain is not None:
            before = time, chain
        found.append(chain)
    return found


def _common(one: Chain, other: Chain) -> Chain:
    """Return what two chains begin with."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


class _TracedCalls:
    """Collects the calls of layers inside functions, from the chain of each equation in turn."""

    def __init__(self) -> None:
        self.found: list[LayerCall] = []
        self._around: list[str] = []  # paths of the calls outside of functions that run
        self._chain: Chain = ()
        self._open: list[tuple[str, int]] = []  # for each part of the chain, the path and when it began
        self._time = -1  # of the call of the function

    def move(self, path: str, ends: bool) -> None:
        """Begin or end a call outside of functions."""
        if not ends:
            self._around.append(path)
        elif path in self._around:
            self._around.remove(path)

    def enter(self, chain: Chain | None, time: int) -> None:
        """End the calls that are not in a chain, and begin those that are; None changes nothing in a function."""
        is_same = time == self._time  # otherwise it is another call, perhaps of the same function
        if chain is None and is_same:
            return
        chain, self._time = chain or (), time
        same = len(_common(self._chain, chain)) if is_same else 0
        while len(self._open) > same:
            path, begin = self._open.pop()
            self.found.append(LayerCall(path, begin, next_time(), 0))
        for name, _ in chain[same:]:
            outer = self._open[-1][0] if self._open else self._around[-1] if self._around else ""
            self._open.append((f"{outer}/{name}" if outer else name, next_time()))
        self._chain = chain
