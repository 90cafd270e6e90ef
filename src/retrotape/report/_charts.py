"""Where things stand on the page: scales, ticks, lines and boxes, as numbers that the template draws."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from retrotape.report._data import NO_PLACE, Flow, Place, Stats
from retrotape.report._report import Report

_WIDTH, _HEIGHT = 1000.0, 250.0  # of the chart, inside its axes
_POINTS = 60  # layers in the chart
_DECADES = 40  # of a scale
_TICKS = 6
_LABELS = 28  # of layers, below the chart
_GROUPS = 12  # of layers, above the chart
_LETTER = 6.2  # the width of a letter in a label
NOTHING = "–"  # noqa: RUF001 - a dash is meant


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale from 10^low to 10^high."""

    low: int
    high: int

    def share(self, value: float) -> float:
        """Return where a value stands, from 0 to 1."""
        if not value > 0.0:
            return 0.0
        return min(max((math.log10(value) - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self) -> list[tuple[str, float]]:
        """Return the labels, at powers of ten, and where they stand."""
        step = max(1, math.ceil((self.high - self.low) / _TICKS))
        return [(f"1e{power}", self.share(10.0**power)) for power in range(self.low, self.high + 1, step)]


def scale_of(values: Iterable[float]) -> Scale:
    """Return a scale for all positive values.

    >>> scale_of([0.02, 3.0, 0.0])
    Scale(low=-2, high=1)
    """
    logs = [math.log10(value) for value in values if 0.0 < value < math.inf]
    if not logs:
        return Scale(-1, 1)
    high = math.ceil(max(logs) + 1e-9)
    return Scale(max(math.floor(min(logs)), high - _DECADES), high if high > math.floor(min(logs)) else high + 1)


@dataclass(frozen=True)
class Point:
    """A value in the chart; `mark` says if it is a number: "", "zero" or "nonfinite"."""

    x: float
    y: float
    title: str
    text: str
    mark: str


@dataclass(frozen=True)
class Series:
    """The points of one kind, and the line through them."""

    name: str
    kind: str
    points: tuple[Point, ...]
    line: str


@dataclass(frozen=True)
class Span:
    """The points of the layers that are part of one layer."""

    title: str
    left: float
    right: float


@dataclass(frozen=True)
class Chart:
    """The gradient flow: layers from left to right, sizes from bottom to top."""

    width: float
    height: float
    ticks: tuple[tuple[str, float], ...]
    series: tuple[Series, ...]
    labels: tuple[tuple[str, float], ...]
    groups: tuple[Span, ...]
    depth: int
    left_out: int


def number(value: float | None) -> str:
    """Return a number in three digits.

    >>> number(0.01234), number(1234567.0), number(None)
    ('0.0123', '1.23e+06', '–')
    """
    if value is None:
        return NOTHING
    return f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share as a percentage.

    >>> percent(0.00312), percent(0.5), percent(1.0)
    ('0.31 %', '50 %', '100 %')
    """
    return f"{100 * share:.2g} %" if abs(share) < 0.1 else f"{100 * share:,.0f} %"


def text_of(stats: Stats | None, kind: str = "rms") -> str:
    """Return what is written beside a bar."""
    if stats is None:
        return NOTHING
    bad = f" and {stats.nonfinite:,} not finite" if stats.nonfinite else ""
    return "not finite" if stats.nonfinite == stats.size else number(getattr(stats, kind)) + bad


def shown_places(places: Sequence[Place], flow: Sequence[Flow]) -> tuple[list[Flow], int]:
    """Return what the chart shows: the innermost layers, or if these are too many, the deepest that fit."""
    for depth in range(max((places[one.place].depth for one in flow), default=0), -1, -1):
        inner = {places[one.place].outer for one in flow if places[one.place].depth <= depth}
        shown = [
            one
            for one in flow
            if places[one.place].depth <= depth
            and one.place not in inner
            and (one.forward is not None or one.backward is not None)
        ]
        if len(shown) <= _POINTS or depth == 0:
            return shown, depth
    return [], 0


def chart_of(report: Report) -> Chart | None:
    """Return the chart of the gradient flow; None if there is nothing to draw."""
    shown, depth = shown_places(report.places, report.flow)
    if len(shown) < 2:
        return None
    left_out = max(0, len(shown) - 4 * _POINTS)
    shown = shown[: 4 * _POINTS]
    stats = [one for flow in shown for one in (flow.forward, flow.backward) if one is not None]
    scale = scale_of(one.rms for one in stats)
    step = _WIDTH / max(len(shown) - 1, 1)
    series = []
    for name, kind in (("what the layer returns", "forward"), ("gradient with respect to it", "backward")):
        points = [
            _point(number_ * step, getattr(one, kind), report.places[one.place], scale)
            for number_, one in enumerate(shown)
        ]
        known = tuple(point for point in points if point is not None)
        series.append(Series(name, kind, known, _line(points)))
    every = math.ceil(len(shown) / _LABELS)
    labels = tuple(
        (report.places[one.place].title, n * step)
        for n, one in enumerate(shown)
        if (len(shown) - 1 - n) % every == 0  # the last one, which is next to the loss, always has a label
    )
    ticks = tuple((label, _HEIGHT * (1.0 - share)) for label, share in scale.ticks())
    return Chart(_WIDTH, _HEIGHT, ticks, tuple(series), labels, _groups(report.places, shown, step), depth, left_out)


def _groups(places: Sequence[Place], shown: Sequence[Flow], step: float) -> tuple[Span, ...]:
    """Return the outermost layers that several points each are part of, such as the blocks of a model."""
    chains = [outer_places(places, one.place) for one in shown]
    for level in range(max(map(len, chains))):
        keys = [chain[level] if len(chain) > level else NO_PLACE for chain in chains]
        runs = [(key, [n for n, _ in run]) for key, run in groupby(enumerate(keys), key=lambda pair: pair[1])]
        found = [(key, own) for key, own in runs if key != NO_PLACE and len(own) > 1]
        if len(found) > 1:
            spans = [(places[key].title, (own[0] - 0.3) * step, (own[-1] + 0.3) * step) for key, own in found]
            spans = [(title[: int((right - left) / _LETTER)], left, right) for title, left, right in spans]
            return tuple(Span(*one) for one in spans) if len(spans) <= _GROUPS else ()
    return ()


def outer_places(places: Sequence[Place], place: int) -> list[int]:
    """Return the places that a place is part of, outermost first."""
    found: list[int] = []
    while (place := places[place].outer) != NO_PLACE:
        found.append(place)
    return found[::-1]


def _point(x: float, stats: Stats | None, place: Place, scale: Scale) -> Point | None:
    if stats is None:
        return None
    mark = "nonfinite" if stats.nonfinite else "" if stats.rms > 0.0 else "zero"
    y = 0.0 if stats.nonfinite == stats.size else _HEIGHT * (1.0 - scale.share(stats.rms))
    return Point(round(x, 1), round(y, 1), place.name, text_of(stats), mark)


def _line(points: Sequence[Point | None]) -> str:
    """Return the path through neighbouring points; it is interrupted where one is missing."""
    parts, pen = [], "M"
    for point in points:
        if point is None or point.mark == "nonfinite":
            pen = "M"
            continue
        parts.append(f"{pen}{point.x:g},{point.y:g}")
        pen = "L"
    return " ".join(parts)


def spark(values: Sequence[float | None], width: float = 120.0, height: float = 22.0) -> str:
    """Return a small line through the values, on a logarithmic scale; empty for fewer than two."""
    known = [value for value in values if value is not None and 0.0 < value < math.inf]
    if len(known) < 2:
        return ""
    scale, step = scale_of(known), width / (len(values) - 1)
    points = [
        f"{n * step:.1f},{height - 2 - (height - 4) * scale.share(value):.1f}"
        for n, value in enumerate(values)
        if value is not None
    ]
    return " ".join(points)
