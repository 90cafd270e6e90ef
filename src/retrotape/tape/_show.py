"""Tapes in a notebook: what ran by layer and line, the names, and the program, folded."""

from __future__ import annotations

from collections.abc import Sequence

from retrotape import _html
from retrotape.diagnose.summary import summarize
from retrotape.errors import printable
from retrotape.record import Trace

_NAMES = 200
_LONGEST = 200  # characters of a name


def as_html(title: str, trace: Trace | None, names: Sequence[str] = ()) -> str:
    """Return a tape as HTML.

    Args:
      title: What it is, as text.
      trace: What was recorded; None if there is nothing to show.
      names: The names on it.
    """
    parts = [_html.text(title)]
    if trace is not None and trace.program.eqns:
        summary = summarize(trace)
        parts.append(_html.folded(f"summary: {summary.ops:,} ops", summary._repr_html_()))
        parts.append(trace.program._repr_html_())
    return "".join([parts[0], names_as_html(names), *parts[1:]])


def names_as_html(names: Sequence[str]) -> str:
    """Return the names on a tape, folded; "" if there are none."""
    if not names:
        return ""
    shown = [printable(name, _LONGEST) for name in names[:_NAMES]]
    more = [f"… {len(names) - _NAMES:,} more"] if len(names) > _NAMES else []
    return _html.folded(f"names: {len(names):,}", _html.text("\n".join([*shown, *more])))
