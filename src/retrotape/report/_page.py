"""Report → one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from retrotape.diagnose.memory import human
from retrotape.errors import MissingPackageError, without_controls
from retrotape.report._charts import chart_of, number, percent, scale_of, spark, text_of
from retrotape.report._pictures import picture_of
from retrotape.report._report import Report

_ROWS = 400  # of a table
_OPEN = 40  # rows of the table of layers that are shown at first


@cache
def template() -> Any:
    """Return the template of the page, or raise if Jinja2 is not installed."""
    try:
        import jinja2
    except ImportError:
        raise MissingPackageError("A report", "Jinja2", "report") from None
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_source),
    )
    environment.filters.update(
        size=human, number=number, text=text_of, percent=percent, name=os.path.basename, ticks=_with_code
    )
    return environment.get_template("page.html.j2")


def _source(name: str) -> str:
    return files("retrotape.report").joinpath("page").joinpath(name).read_text(encoding="utf-8")


def _with_code(text: str) -> Any:
    """Return text as HTML in which what stands between backticks is code."""
    import markupsafe

    parts = [markupsafe.escape(part) for part in text.split("`")]
    if len(parts) % 2 == 0:  # one of them has no partner
        return markupsafe.escape(text)
    whole = (part if n % 2 == 0 else markupsafe.Markup("<code>{}</code>").format(part) for n, part in enumerate(parts))
    return markupsafe.Markup("").join(whole)


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render(report: Report, difference: Mapping[str, Any] | None = None) -> str:
    """Return the page of a report.

    Args:
      report: What it shows.
      difference: How the tape differs from another one, with a report of that: see `compare`.
    """
    import markupsafe

    page = template()
    style, script = _source("page.css"), _source("page.js")
    flows = {one.place: one for one in report.flow}
    rows, scales = _flow_rows(report), _scales(report)
    found = page.render(
        report=report,
        chart=chart_of(report),
        rows=rows[:_ROWS],
        left_out=max(0, len(rows) - _ROWS),
        open_depth=_open_depth(report),
        scales=scales,
        pictures=[picture_of(one, report.places, flows, scales["backward"]) for one in report.drawings],
        shown=_shown_drawing(report),
        codes=defaultdict(str, {str(line): line.code for line in report.lines}),
        memory=report.memory[:_ROWS],
        most=max((one.bytes for one in report.memory), default=1) or 1,
        histories=report.histories[:_ROWS],
        spark=spark,
        changes=_changes,
        summary=_summary(report),
        difference=difference,
        style=markupsafe.Markup(style),
        script=markupsafe.Markup(script),
        policy=f"default-src 'none'; style-src {_hashed(style)}; script-src {_hashed(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        data=markupsafe.Markup(_data(report)),
    )
    return without_controls(found)  # a name may hide, or turn around, what stands after it


def _data(report: Report) -> str:
    """Return the ops as JSON that can stand in a script element."""
    names, types = (
        list(dict.fromkeys(op.name for op in report.ops)),
        list(dict.fromkeys(op.output for op in report.ops)),
    )
    code_of = {str(line): line.code for line in report.lines}
    name_of = {name: n for n, name in enumerate(names)}
    type_of = {name: n for n, name in enumerate(types)}
    data = {
        "names": _texts(names),
        "types": _texts(types),
        "lines": [_texts([line.file, line.number, line.function, line.code]) for line in report.lines],
        "places": [
            _texts([place.title, place.name, place.outer, place.output, code_of.get(place.name, "")])
            for place in report.places
        ],
        "name": [name_of[op.name] for op in report.ops],
        "type": [type_of[op.output] for op in report.ops],
        "place": [op.place for op in report.ops],
        "line": [op.line for op in report.ops],
        "kept": [op.kept for op in report.ops],
    }
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _texts(row: list[Any]) -> list[Any]:
    return [without_controls(item) if isinstance(item, str) else item for item in row]


def _scales(report: Report) -> dict[str, Any]:
    return {
        "forward": scale_of(one.forward.rms for one in report.flow if one.forward is not None),
        "backward": scale_of(one.backward.rms for one in report.flow if one.backward is not None),
        "weights": scale_of(one.weights.norm for one in report.flow if one.weights is not None),
    }


def _flow_rows(report: Report) -> list[dict[str, Any]]:
    """Return the rows of the table of layers: layers in layers, in the order in which they ran."""
    flows = {one.place: one for one in report.flow}
    inner = {place.outer for place in report.places}
    marked: dict[int, list[str]] = {}
    for one in report.findings:
        for number_ in one.places:
            marked.setdefault(number_, []).append(one.kind)
    return [
        {
            "place": place,
            "number": n,
            "flow": flows[n],
            "has_inner": n in inner,
            "marks": dict.fromkeys(marked.get(n, ())),
        }
        for n, place in enumerate(report.places)
        if n in flows
    ]


def _open_depth(report: Report) -> int:
    """Return the depth down to which layers are shown at first."""
    depths = [report.places[one.place].depth for one in report.flow]
    fitting = [depth for depth in range(max(depths, default=0) + 1) if sum(d <= depth for d in depths) <= _OPEN]
    return max(fitting, default=0)


def _shown_drawing(report: Report) -> int:
    """Return the drawing that is shown at first: the most detailed one that fits on a screen or two."""
    fitting = [n for n, one in enumerate(report.drawings) if len(one.nodes) <= 28]
    return max(fitting, default=0)


def _changes(history: Any) -> list[float | None]:
    """Return by which share of itself a variable changed at each update."""
    found = []
    for update in history.updates:
        known = update.change is not None and update.value is not None and update.value.norm > 0.0
        found.append(update.change.norm / update.value.norm if known else None)
    return found


def _summary(report: Report) -> list[tuple[str, Any, int, int]]:
    """Return what is printed in place of the list of ops: places and lines, with ops and bytes."""
    found: dict[tuple[int, int], list[int]] = {}
    for op in report.ops:
        row = found.setdefault((op.place, op.line), [0, 0])
        row[0] += 1
        row[1] += op.kept
    rows = [
        (report.places[place].name if report.places[place].is_layer else "", report.lines[line], ops, kept)
        for (place, line), (ops, kept) in found.items()
    ]
    return rows[:_ROWS]
