"""The gradient of one tensor with respect to a list of variables, on a trace that equals an earlier one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from retrotape.compile import compiled
from retrotape.execute import Request
from retrotape.query._base import Results
from retrotape.query._inside import GradientInside, gradient_inside
from retrotape.query._request import make_request, solve
from retrotape.record import TRAINABLE, EagerSession, Session, Template
from retrotape.tf import core
from retrotape.tf.nests import take_apart

MOST = 64  # queries remembered for one template


class QuickGradient:
    """A query that can be looked up by the identities of its arguments, without translating each of them.

    Attributes:
      key: What identifies it among the queries on equal traces: the var of the target, the slots of the variables.
    """

    __slots__ = ("_request", "_session", "_sources", "_target", "_template", "key")

    def __init__(self, session: EagerSession, template: Template, target: Any, sources: Any, key: Hashable) -> None:
        self._session, self._template, self._target, self._sources = session, template, target, sources
        self.key = key
        self._request: Request | None = None

    def request(self) -> Request:
        """Return the query in terms of vars."""
        if self._request is None:
            parts = take_apart(self._sources, "source")
            self._request = make_request(self._session, Results(), self._target, parts)
        return self._request

    def solve(self) -> list[Any]:
        """Compute it op by op."""
        return solve(self._session, self.request())

    def run(self) -> list[Any] | None:
        """Return the gradients by a compiled function; None if the query is not known."""
        kind = self._template.queries.get(self.key)
        return None if kind is None else compiled(self._session.trace, kind, (), self.solve)

    def learn(self, kind: Hashable) -> None:
        """Remember the query, as what `compiled` knows it."""
        if len(self._template.queries) < MOST:
            self._template.queries[self.key] = kind


def quick_gradient(session: Session, target: Any, sources: Any) -> QuickGradient | GradientInside | None:
    """Return a query if it can be looked up: one tensor, a list or tuple of variables, and a trace that followed."""
    closed = isinstance(session, EagerSession) and not session.is_open
    if not closed:
        return gradient_inside(session, target, sources)
    template = session.trace.followed()
    if template is None or type(target) is not core.EagerTensor or type(sources) not in (list, tuple):
        return None
    var, handles = session.find(target), core.handles_in(sources)
    if var is None or handles is None or core.eager_dtype(target) not in TRAINABLE:
        return None
    session.trace.owners.update(core.owners_of(sources))
    slots = session.trace.slots_of(handles)
    if None in slots:
        return None
    return QuickGradient(session, template, target, sources, (var, slots))  # type: ignore[arg-type]
