"""Which programs to expect where: the templates of each `with` statement that opened a tape."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from retrotape._locks import new_lock
from retrotape._types import Place
from retrotape.record._template import Template, can_follow
from retrotape.record._trace import Trace

SITES = 256  # most places that are remembered
TEMPLATES = 8  # most programs of one place
EQUATIONS = 20_000  # of the longest program that is remembered
TOTAL = 200_000  # equations of all programs that are remembered
PATIENCE = 16  # programs of one place, none of which came again, before most are no longer remembered
_lock = new_lock()  # garbage collection may run anywhere and close tapes
_sites: OrderedDict[Any, Site] = OrderedDict()


class Site:
    """A place in user code where tapes are opened, with the programs recorded there, the latest first."""

    def __init__(self, place: Place) -> None:
        self._place = place  # keeps the code object alive, whose `id` is part of the key
        self.templates: list[Template] = []
        self.spots: list[Any] = []  # where its ops ran, see `Stack.expect`
        self.queried_again = False  # whether a tape in segments needed values that its first query had released
        self._wasted = 0  # templates since one came again

    def size(self) -> int:
        """Return the number of equations."""
        return sum(len(template.eqns) for template in self.templates)

    def used(self, template: Template) -> None:
        """Put a template first: its program came again."""
        self._wasted = 0
        if self.templates and self.templates[0] is not template:
            with _lock:
                self.templates = [template, *(one for one in self.templates if one is not template)][:TEMPLATES]

    def add(self, trace: Trace) -> Template | None:
        """Remember the program of a trace, if a later run can follow it; return its template."""
        if not trace.program.eqns or len(trace.program.eqns) > EQUATIONS or not can_follow(trace):
            return None
        self._wasted += 1
        if self._wasted > PATIENCE and self._wasted % PATIENCE:
            return None
        template = Template(trace)
        with _lock:
            for dropped in self.templates[TEMPLATES - 1 :]:
                for one in self.templates:
                    one.forget(dropped)
            self.templates = [template, *self.templates[: TEMPLATES - 1]]
        _trim()
        return template


def site_of(place: Place) -> Site:
    """Return the site of a place in user code."""
    key = (id(place[0]), place[1]) if place is not None else None
    with _lock:
        found = _sites.get(key)
        if found is None:
            found = _sites[key] = Site(place)
            if len(_sites) > SITES:
                _sites.popitem(last=False)
        else:
            _sites.move_to_end(key)
        return found


def forget_sites() -> None:
    """Forget all programs."""
    with _lock:
        _sites.clear()


def _trim() -> None:
    """Forget the places that were used least recently, if there are too many equations."""
    with _lock:
        total = sum(site.size() for site in _sites.values())
        while total > TOTAL and len(_sites) > 1:
            total -= _sites.popitem(last=False)[1].size()
