"""The gradient of one tensor with respect to a list of variables, inside an open block that was run before."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from retrotape.execute import Request
from retrotape.lower import is_inside, run_inside
from retrotape.record import TRAINABLE, EagerSession, Recorder, Session
from retrotape.tf import core

MOST = 1024  # queries remembered for one template


class GradientInside:
    """A query that can be looked up by the identities of its arguments: see `QuickGradient`.

    Attributes:
      solve: None: its result is recorded, and need not be computed again.
    """

    __slots__ = ("_key", "_kind", "_sources", "_trace")
    solve = None

    def __init__(self, trace: Recorder, sources: Any, key: Hashable) -> None:
        self._trace, self._sources, self._key = trace, sources, key
        self._kind: Any = None

    def request(self) -> Request:
        """Return the query in terms of vars."""
        targets, _, sources, through, since = self._kind[1]
        return Request(targets, (), sources, through, since)

    def run(self) -> list[Any] | None:
        """Return the gradients by a compiled function; None if there is none."""
        for template in self._trace.templates():
            self._kind = template.inside.get(self._key)
            if self._kind is not None:
                return run_inside(self._trace, self._kind)
        return None

    def pack(self, found: list[Any]) -> Any:
        """Shape the gradients like the sources, a list or a tuple."""
        return found if type(self._sources) is list else tuple(found)

    def remember(self, kind: Hashable) -> None:
        """Remember the query, as what `run_inside` knows it."""
        for template in self._trace.templates()[:1]:
            if len(template.inside) < MOST:
                template.inside[self._key] = kind


def gradient_inside(session: Session, target: Any, sources: Any) -> GradientInside | None:
    """Return a query if it can be looked up: one tensor, a list or tuple of variables, and a trace that follows."""
    trace = session.trace
    if not (isinstance(session, EagerSession) and isinstance(trace, Recorder) and is_inside(trace)):
        return None
    known = trace.position()
    if known is None or type(target) is not core.EagerTensor or type(sources) not in (list, tuple):
        return None
    var, handles = session.find(target), core.handles_in(sources)
    if var is None or handles is None or core.eager_dtype(target) not in TRAINABLE:
        return None
    trace.owners.update(core.owners_of(sources))
    slots = trace.slots_of(handles)
    return None if None in slots else GradientInside(trace, sources, (known[1].eqns, var, slots))
