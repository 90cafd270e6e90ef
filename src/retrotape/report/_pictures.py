"""Where the boxes and arrows of a drawing stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from retrotape.report._charts import Scale, outer_places
from retrotape.report._data import Drawing, Flow, Node, Place


@dataclass(frozen=True)
class Box:
    """A node of the graph, as drawn."""

    title: str
    place: int
    x: float
    y: float
    width: float
    heat: float  # the length of its bar
    is_sign: bool


@dataclass(frozen=True)
class Group:
    """The boxes of one layer, marked on their left."""

    title: str
    x: float
    top: float
    bottom: float


@dataclass(frozen=True)
class Picture:
    """A drawing with its coordinates."""

    depth: int
    width: float
    height: float
    boxes: tuple[Box, ...]
    edges: tuple[str, ...]
    skips: tuple[str, ...]
    groups: tuple[Group, ...]


_BOX, _GAP, _ROW, _TALL, _SIGN, _MARGIN = 148.0, 18.0, 50.0, 30.0, 30.0, 16.0
_TITLES, _SIDE = 130.0, 60.0  # room for names of groups on the left, and for edges on the right


def picture_of(drawing: Drawing, places: Sequence[Place], flows: Mapping[int, Flow], scale: Scale) -> Picture:
    """Return where the nodes and edges of a drawing stand."""
    levels: dict[int, int] = {}
    for node in drawing.nodes:
        levels[node.rank] = max(levels.get(node.rank, 0), node.column + 1)
    widest = max(levels.values(), default=1)
    inner = widest * (_BOX + _GAP) - _GAP
    spans = _spans(drawing, places)
    left = _MARGIN + (_TITLES if spans else 0.0)
    boxes, returning = [], _returning(drawing, places)
    for node in drawing.nodes:
        row = levels[node.rank] * (_BOX + _GAP) - _GAP
        middle = left + (inner - row) / 2 + node.column * (_BOX + _GAP) + _BOX / 2
        is_sign = len(node.title) == 1
        width = _SIGN if is_sign else _BOX
        flow = flows.get(node.place) if returning.get(node.place) is node else None
        heat = 0.0 if flow is None or flow.backward is None else scale.share(flow.backward.rms)
        y = _MARGIN + node.rank * _ROW
        boxes.append(Box(node.title, node.place, middle - width / 2, y, width, round(heat * (width - 12), 1), is_sign))
    groups = [Group(title, _TITLES, _MARGIN + a * _ROW, _MARGIN + b * _ROW + _TALL) for title, a, b in spans]
    edges = tuple(_edge(boxes[a], boxes[b]) for a, b in drawing.edges)
    skips = tuple(_arc(boxes[a], boxes[b], left + inner) for a, b in drawing.skips)
    height = 2 * _MARGIN + max(levels, default=0) * _ROW + _TALL
    width = left + inner + (_SIDE if skips or spans else _MARGIN)
    return Picture(drawing.depth, width, height, tuple(boxes), edges, skips, tuple(groups))


def _returning(drawing: Drawing, places: Sequence[Place]) -> dict[int, Node]:
    """Return the node of each place that has its result: the last one, unless it stands for single ops of a layer."""
    found: dict[int, Node] = {}
    for node in sorted(drawing.nodes, key=lambda one: one.rank):
        place = places[node.place]
        if node.title in (place.title, f"{place.last_name} ×{place.calls}"):  # noqa: RUF001 - as in `_graph`
            found[node.place] = node
    return found


def _spans(drawing: Drawing, places: Sequence[Place]) -> list[tuple[str, int, int]]:
    """Return the layers that several boxes are part of, with their first and last rank; none if these overlap."""
    for level in range(drawing.depth):
        found: dict[int, list[int]] = {}
        for node in drawing.nodes:
            chain = [*outer_places(places, node.place), node.place]
            if len(chain) > level:
                found.setdefault(chain[level], []).append(node.rank)
        spans = sorted((min(own), max(own), place) for place, own in found.items() if len(own) > 1)
        if len(spans) > 1:
            apart = all(one[1] < other[0] for one, other in pairwise(spans))
            return [(places[place].title, first, last) for first, last, place in spans] if apart else []
    return []


def _edge(one: Box, other: Box) -> str:
    x, y, u, v = one.x + one.width / 2, one.y + _TALL, other.x + other.width / 2, other.y
    if x == u:
        return f"M{x:g},{y:g} L{u:g},{v - 1:g}"
    middle = (v - y) / 2
    return f"M{x:g},{y:g} C{x:g},{y + middle:g} {u:g},{v - middle:g} {u:g},{v - 1:g}"


def _arc(one: Box, other: Box, right: float) -> str:
    """Return an edge that passes by other nodes, on their right."""
    x, y, u, v = one.x + one.width, one.y + _TALL / 2, other.x + other.width, other.y + _TALL / 2
    side = right + 26.0
    down, up = f"C{side:g},{y:g} {side:g},{y:g} {side:g},{y + 24:g}", f"C{side:g},{v:g} {side:g},{v:g} {u + 2:g},{v:g}"
    return f"M{x:g},{y:g} {down} L{side:g},{v - 24:g} {up}"
