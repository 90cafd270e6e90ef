"""The graph of places, laid out in ranks: a place stands below everything that it depends on."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from retrotape.ir import LEAF, Program
from retrotape.report._data import NO_PLACE, Drawing, Node, Place
from retrotape.report._places import Places

_MOST = 120  # nodes of a drawing
_SIGNS = {"AddV2": "+", "Add": "+", "AddN": "+", "Mul": "×", "Sub": "−", "ConcatV2": "concat"}  # noqa: RUF001 - signs of arithmetic are meant
_PASSING = frozenset(("Identity", "Shape", "StridedSlice", "Reshape", "Cast", "ReadVariableOp", "Pack"))
Edges = dict[int, set[int]]  # for each node those that it depends on


def draw(program: Program, places: Places, described: Sequence[Place], used: Collection[int]) -> tuple[Drawing, ...]:
    """Return drawings of the places, from the outermost ones on to those inside them.

    Args:
      program: The program.
      places: Its places.
      described: The same, as data.
      used: The equations that count.
    """
    found: list[Drawing] = []
    whole = _Sketch(program, places, described, sorted(used))
    for depth in range(max((place.depth for place in described), default=0) + 1):
        drawing = whole.drawing(depth)
        if drawing is not None and (not found or len(drawing.nodes) != len(found[-1].nodes)):
            found.append(drawing)
    return tuple(found)


class _Sketch:
    """What is drawn: calls of layers, and between them, runs of ops outside of inner layers."""

    def __init__(self, program: Program, places: Places, described: Sequence[Place], used: Sequence[int]) -> None:
        self._program, self._places, self._described, self._used = program, places, described, used
        self._has_inner = set(places.outer)

    def drawing(self, depth: int) -> Drawing | None:
        """Return the drawing at a depth: a node for each call, or if these are too many, for each layer."""
        for key_of in (self._by_call, self._by_layer):
            keys = key_of(depth)
            numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
            if 1 < len(numbers) <= _MOST:
                node_of = {index: numbers[key] for index, key in keys.items()}
                edges = edges_between(self._program, self._used, node_of, len(numbers))
                return _laid_out(edges, self._titles(node_of, depth, merged=key_of == self._by_layer), depth)
        return None

    def _by_call(self, depth: int) -> dict[int, Hashable]:
        """Return a key for each equation; ops between calls of inner layers have one for each run of them."""
        found: dict[int, Hashable] = {}
        last, run = NO_PLACE, 0
        for index in self._used:
            place = self._at(index, depth)
            run += place != last
            last = place
            found[index] = (place, run if self._is_between(place, depth) else 0)
        return found

    def _by_layer(self, depth: int) -> dict[int, Hashable]:
        return {index: self._described[self._at(index, depth)].name for index in self._used}

    def _at(self, index: int, depth: int) -> int:
        chain = list(self._places.chain(self._places.of[index]))[::-1]
        return chain[min(depth, len(chain) - 1)]

    def _is_between(self, place: int, depth: int) -> bool:
        """Return whether ops of a place stand between inner ones, which are drawn."""
        is_inside = self._described[place].depth < depth and place in self._has_inner
        return is_inside or not self._described[place].is_layer

    def _titles(self, node_of: Mapping[int, int], depth: int, merged: bool) -> list[tuple[str, int]]:
        own: dict[int, list[int]] = {}
        for index in self._used:
            own.setdefault(node_of[index], []).append(index)
        return [self._title(own[node], depth, merged) for node in range(len(own))]

    def _title(self, indices: Sequence[int], depth: int, merged: bool) -> tuple[str, int]:
        place = self._at(indices[0], depth)
        described = self._described[place]
        if merged and described.calls > 1:
            return f"{described.last_name} ×{described.calls}", place  # noqa: RUF001 - a sign is meant
        if not described.is_layer or not self._is_between(place, depth):
            return described.title, place
        names = [op for op in (self._program.eqns[index].op for index in indices) if op not in _PASSING]
        last = names[-1] if names else self._program.eqns[indices[-1]].op
        return _SIGNS.get(last, last), place


def edges_between(program: Program, used: Iterable[int], node_of: Mapping[int, int], count: int) -> Edges:
    """Return which nodes each node depends on; only earlier ones, so that there is no cycle."""
    found: Edges = {node: set() for node in range(count)}
    for index in used:
        for var in program.eqns[index].inputs:
            maker = program.producers[var]
            node = -1 if maker == LEAF else node_of.get(maker, -1)
            if 0 <= node < node_of[index]:
                found[node_of[index]].add(node)
    return found


def reduced(edges: Mapping[int, set[int]]) -> Edges:
    """Return the edges that do not follow from others.

    >>> reduced({0: set(), 1: {0}, 2: {0, 1}})
    {0: set(), 1: {0}, 2: {1}}
    """
    before: Edges = {}  # everything that a node depends on, also through others
    found: Edges = {}
    for node in sorted(edges):
        indirect = set().union(*(before[one] for one in edges[node]))
        before[node] = edges[node] | indirect
        found[node] = edges[node] - indirect
    return found


def ranks(edges: Mapping[int, set[int]]) -> dict[int, int]:
    """Return for each node the length of the longest path to it.

    >>> ranks({0: set(), 1: {0}, 2: {0, 1}, 3: set()})
    {0: 0, 1: 1, 2: 2, 3: 0}
    """
    found: dict[int, int] = {}
    for node in sorted(edges):
        found[node] = max((found[one] + 1 for one in edges[node]), default=0)
    return found


def _laid_out(edges: Edges, titles: Sequence[tuple[str, int]], depth: int) -> Drawing:
    few, rank = reduced(edges), ranks(edges)
    for node in sorted(edges, reverse=True):  # what depends on nothing stands right above what uses it
        users = [rank[one] for one in edges if node in edges[one]]
        if not edges[node] and users:
            rank[node] = min(users) - 1
    column = _columns(few, rank)
    nodes = tuple(Node(title, place, rank[n], column[n]) for n, (title, place) in enumerate(titles))
    kept = tuple((one, node) for node in few for one in sorted(few[node]))
    left_out = [(one, node) for node in edges for one in sorted(edges[node] - few[node])]
    skips = tuple(pair for pair in left_out if rank[pair[1]] - rank[pair[0]] > 1)
    return Drawing(depth, nodes, kept, skips if len(skips) <= len(nodes) else ())


def _columns(edges: Mapping[int, set[int]], rank: Mapping[int, int]) -> dict[int, int]:
    """Return the position of each node in its rank: near those that it depends on."""
    levels: dict[int, list[int]] = {}
    for node in sorted(edges):
        levels.setdefault(rank[node], []).append(node)
    column: dict[int, int] = {}
    for level in sorted(levels):
        means = {n: sum(column[one] for one in edges[n]) / max(len(edges[n]), 1) for n in levels[level]}
        column.update({node: place for place, node in enumerate(sorted(levels[level], key=lambda n: (means[n], n)))})
    return column
