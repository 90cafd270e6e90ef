"""The gradient of tensors with respect to variables, on a trace that equals an earlier one."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from retrotape.execute import Request
from retrotape.grads import Gradients, identities_of
from retrotape.lower import compiled
from retrotape.query._base import Results
from retrotape.query._inside import GradientInside, gradient_inside
from retrotape.query._request import make_request, solve
from retrotape.query._several import Together
from retrotape.record import TRAINABLE, EagerSession, Session, Template
from retrotape.tf import core
from retrotape.tf.nests import take_apart

MOST = 64  # queries remembered for one template


class QuickGradient:
    """A query that can be looked up by the identities of its arguments, without translating each of them.

    Attributes:
      key: What identifies it among the queries on equal traces: the vars of the targets, the slots of the variables.
    """

    __slots__ = ("_request", "_session", "_sources", "_target", "_template", "key")

    def __init__(self, session: EagerSession, template: Template, target: Any, sources: Any, key: Hashable) -> None:
        self._session, self._template = session, template
        self._target, self._sources = map(_copied, (target, sources))  # the caller may change them
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

    def pack(self, found: list[Any]) -> Any:
        """Shape the gradients like the sources."""
        sources = self._sources
        if type(sources) is not dict:
            return found if type(sources) is list else tuple(found)
        by_key = dict(zip(sorted(sources), found, strict=True))
        return {key: by_key[key] for key in sources}

    def remember(self, kind: Hashable) -> None:
        """Remember the query, as what `compiled` knows it."""
        if len(self._template.queries) < MOST:
            self._template.queries[self.key] = kind


class QuickEach(QuickGradient):
    """The same for the gradients of several losses."""

    __slots__ = ("_together",)

    def _requests(self) -> Together:
        if not hasattr(self, "_together"):
            given = [(loss, None) for loss in self._target]
            self._together = Together(self._session, Results(), given, take_apart(self._sources, "source"))
        return self._together

    def _request_of(self, number: int) -> Request:
        return self._requests().requests[number]

    def _row(self, number: int) -> list[Any]:
        return solve(self._session, self._request_of(number))

    def gradients(self, results: Results) -> list[Gradients] | None:
        """Return the gradients by a compiled function, and remember them; None if the query is not known."""
        known: Any = self._template.queries.get(self.key)
        if known is None:
            return None
        kind, reasons = known
        found = compiled(self._session.trace, kind, (), lambda: self._requests().solve_all())
        sources, made, width = self._sources, [], len(self._sources)
        identities = identities_of(sources)
        for number, why in enumerate(reasons):
            row = found[number * width : (number + 1) * width]
            if [position for position, grad in enumerate(row) if grad is None] != [*why]:
                return None
            results.remember(partial(self._request_of, number), partial(self._row, number), row, ())
            made.append(Gradients.of_query(sources, row, why, identities))
        return made

    def learn_rows(self, together: Together, rows: list[list[Any]]) -> None:
        """Remember the query, if equal traces have the same results."""
        reasons = together.reasons(rows) if together.is_plain else None
        if reasons is not None:
            self.remember((together.kind, reasons))


def quick_gradient(session: Session, target: Any, sources: Any) -> QuickGradient | GradientInside | None:
    """Return a query if it can be looked up: of tensors, with respect to variables, on a trace that followed."""
    if not _is_closed(session):
        return gradient_inside(session, target, sources)
    found = _look_up(session, target, sources)
    return None if found is None else QuickGradient(session, found[0], target, sources, found[1:])  # type: ignore


def quick_each(session: Session, losses: Any, sources: list[Any]) -> QuickEach | None:
    """Return the same for a list of losses."""
    found = _look_up(session, losses, sources) if type(losses) in (list, tuple) and len(losses) > 1 else None
    return None if found is None else QuickEach(session, found[0], losses, sources, ("each", *found[1:]))  # type: ignore


def _is_closed(session: Session) -> bool:
    return isinstance(session, EagerSession) and not session.is_open


def _look_up(session: Session, target: Any, sources: Any) -> tuple[Template, tuple[int, ...], tuple[Any, ...]] | None:
    """Return the template that a trace equals, the vars of the targets and the slots of the variables.

    Results on an open tape are recorded, or are constants while it is paused.
    """
    template = session.trace.followed() if _is_closed(session) else None
    variables = None if template is None else _flat(sources)
    if template is None or variables is None:
        return None
    targets, handles = _vars_of(session, target), core.handles_in(variables)
    if targets is None or handles is None:
        return None
    owners = core.owners_of(variables)
    if owners:
        session.trace.owners.update(owners)
    slots = session.trace.slots_of(handles)
    return None if None in slots else (template, targets, slots)


def _copied(given: Any) -> Any:
    return given.copy() if type(given) in (list, dict) else given


def _flat(sources: Any) -> Any:
    """Return the items of a list, a tuple or a dictionary in the order of `tf.nest`; None for anything else."""
    kind = type(sources)
    if kind is list or kind is tuple:
        return sources
    if kind is not dict:
        return None
    try:
        return [sources[key] for key in sorted(sources)]
    except TypeError:  # `tf.nest` refuses it too
        return None


def _vars_of(session: Session, target: Any) -> tuple[int, ...] | None:
    """Return the vars of a tensor, or of the tensors in a list or tuple; None if there is something else."""
    found = []
    for tensor in target if type(target) in (list, tuple) else (target,):
        var = session.find(tensor) if type(tensor) is core.EagerTensor else None
        if var is None or core.eager_dtype(tensor) not in TRAINABLE:
            return None
        found.append(var)
    return tuple(found)
