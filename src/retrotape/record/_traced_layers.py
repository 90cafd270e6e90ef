"""Which layer an operation of a traced function belongs to.

While a function is traced, no op runs and nothing is recorded. So it is noted which operations each call of a layer
adds to the graph; when the function is run op by op, its equations are known to belong to that call. Operations are
noted by number, `graph.version`, as a list of them takes time in proportion to the graph. It is made only when a
chain is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import local
from typing import Any
from weakref import WeakKeyDictionary

from retrotape.tf.core import tf

Chain = tuple[tuple[str, int], ...]  # calls of layers, the outermost first: the name of each, and a number of the call


class _Calls:
    """The calls of layers in a graph."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, Chain]] = []  # the first operation, the one after the last; inner calls first
        self._chains: dict[str, Chain] = {}  # by name of the operation, for the spans that were resolved
        self._resolved = 0

    def add(self, first: int, end: int, chain: Chain) -> None:
        """Note that the operations from number `first` to `end` belong to a call."""
        if end > first:
            self._spans.append((first, end, chain))

    def chain_of(self, operation: Any) -> Chain | None:
        """Return the calls that an operation belongs to; None if there are none."""
        if self._resolved < len(self._spans):
            names = [one.name for one in operation.graph.get_operations()]
            for first, end, chain in self._spans[self._resolved :]:
                for name in names[first:end]:
                    self._chains.setdefault(name, chain)  # those of inner layers are there already
            self._resolved = len(self._spans)
        return self._chains.get(operation.name)


_calls: WeakKeyDictionary[Any, _Calls] = WeakKeyDictionary()  # by graph
_around: WeakKeyDictionary[Any, Chain] = WeakKeyDictionary()  # the calls that a graph was traced in
_numbers = count()


class _Running(local):
    chain: Chain = ()


_running = _Running()


def trace_layer(name: str, run: Callable[[], Any]) -> Any:
    """Run a layer inside a graph, and note which operations it adds."""
    graph = tf.compat.v1.get_default_graph()
    first = graph.version
    outer = _running.chain
    _around.setdefault(graph, outer)
    chain = _running.chain = (*outer, (name, next(_numbers)))
    try:
        return run()
    finally:
        _running.chain = outer
        _calls.setdefault(graph, _Calls()).add(first, graph.version, chain)


def chain_of(place: Any) -> Chain | None:
    """Return the calls of layers that an operation belongs to; None if that of its caller applies.

    A function inside a function, such as the body of a loop, runs in the layer that calls it.
    """
    if not isinstance(place, tf.Operation):
        return ()
    calls = _calls.get(place.graph)
    chain = None if calls is None else calls.chain_of(place)
    if chain is None and getattr(getattr(place.graph, "outer_graph", None), "building_function", False):
        return _around.get(place.graph)
    return chain or ()
