"""Which layer an operation of a traced function belongs to.

While a function is traced, no op runs and nothing is recorded. So it is noted which operations each call of a layer
adds to the graph; when the function is run op by op, its equations are known to belong to that call.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import local
from typing import Any
from weakref import WeakKeyDictionary

from retrotape.tf.core import tf

Chain = tuple[tuple[str, int], ...]  # calls of layers, the outermost first: the name of each, and a number of the call
_chains: WeakKeyDictionary[Any, dict[str, Chain]] = WeakKeyDictionary()  # by graph, and by name of the operation
_around: WeakKeyDictionary[Any, Chain] = WeakKeyDictionary()  # the calls that a graph was traced in
_numbers = count()


class _Running(local):
    chain: Chain = ()


_running = _Running()


def trace_layer(name: str, run: Callable[[], Any]) -> Any:
    """Run a layer inside a graph, and note which operations it adds."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    outer = _running.chain
    _around.setdefault(graph, outer)
    chain = _running.chain = (*outer, (name, next(_numbers)))
    try:
        return run()
    finally:
        _running.chain = outer
        chains = _chains.setdefault(graph, {})
        for operation in graph.get_operations()[before:]:
            chains.setdefault(operation.name, chain)  # those of inner layers are there already


def chain_of(place: Any) -> Chain | None:
    """Return the calls of layers that an operation belongs to; None if that of its caller applies.

    A function inside a function, such as the body of a loop, runs in the layer that calls it.
    """
    if not isinstance(place, tf.Operation):
        return ()
    chain = _chains.get(place.graph, {}).get(place.name)
    if chain is None and getattr(getattr(place.graph, "outer_graph", None), "building_function", False):
        return _around.get(place.graph)
    return chain or ()
