"""Which structures are known, and what is known about the queries on them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from retrotape._locks import new_lock
from retrotape.lower._keys import described, structure_key
from retrotape.lower._observed import Computation, NotCompilableError
from retrotape.record import Trace, settings

STRUCTURES = 256  # most that are remembered
QUERIES = 64  # most of one structure
PARTS = 1024  # most parts of queries of one structure
AT_ONCE = 4  # queries of one structure that are observed when they are first asked
CREDIT = 4  # structures observed when they first appear and not seen again, before new ones have to come twice


_lock = new_lock()  # garbage collection may run anywhere and close tapes


class QueryState:
    """What is known about one query on traces of one structure.

    Attributes:
      variants: Compiled functions, which differ in the values that they are right for.
      last: What the query computed the last time, if it is not compiled yet.
      attempts: How often it computed something new.
      refused: Why it is not compiled; None if it is, or will be.
    """

    def __init__(self) -> None:
        self.variants: list[Any] = []
        self.last: Computation | None = None
        self.attempts = 0
        self.refused: str | None = None

    def add(self, variant: Any) -> None:
        """Add a compiled function."""
        self.variants.append(variant)
        self.last, self.attempts = None, 0

    def refuse(self, reason: str) -> None:
        """Never compile it."""
        self.refused, self.last = reason, None


class Structure:
    """What is known about traces of one structure: the queries, by what they ask for."""

    def __init__(self) -> None:
        self.queries: OrderedDict[Hashable, QueryState] = OrderedDict()
        self._asked_once: OrderedDict[int, None] = OrderedDict()  # hashes of further queries
        self._parts: OrderedDict[Hashable, QueryState] = OrderedDict()
        self.sights = 0
        self.refused: str | None = None

    def query(self, key: Hashable) -> QueryState | None:
        """Return what is known about a query; None if it is one of many and was not asked before.

        The first few are remembered when they are first asked, further ones the second time; the least recently used
        are forgotten.
        """
        with _lock:
            return self._query(key)

    def _query(self, key: Hashable) -> QueryState | None:
        found = self.queries.get(key)
        if found is not None:
            if len(self.queries) > AT_ONCE:
                self.queries.move_to_end(key)
            return found
        if len(self.queries) >= AT_ONCE and hash(key) not in self._asked_once:
            self._asked_once[hash(key)] = None
            if len(self._asked_once) > 4 * QUERIES:
                self._asked_once.popitem(last=False)
            return None
        found = self.queries[key] = QueryState()
        if len(self.queries) > QUERIES:
            self.queries.popitem(last=False)
        return found

    def part(self, key: Hashable) -> QueryState:
        """Return what is known about a part of a query."""
        with _lock:
            found = self._parts.setdefault(key, QueryState())
            self._parts.move_to_end(key)
            if len(self._parts) > PARTS:
                self._parts.popitem(last=False)
            return found

    def needs(self) -> frozenset[int] | None:
        """Return the vars whose values its queries take; None if one of them is not compiled."""
        if self.refused is not None or not all(query.variants for query in list(self.queries.values())):
            return None
        variants = [lowered for query in list(self.queries.values()) for lowered in query.variants]
        return frozenset(var for one in variants for var in (*one.feeds, *(var for var, _ in one.guards)))


class Cache:
    """Finds structures, and decides which are worth observing. The least recently used are forgotten."""

    def __init__(self) -> None:
        self._structures: OrderedDict[Hashable, Structure] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()  # hashes of keys that appeared once
        self._credit = CREDIT

    def structure_of(self, trace: Trace) -> Structure | None:
        """Return the structure of a trace; None if it is new and not worth remembering yet."""
        if trace.guard is not None:
            return self._own_structure(trace)
        template = trace.followed()
        try:
            if template is not None:
                found, functions = template.structure
                if found is not None and functions == described(trace):
                    return self._seen_again(found)
            known, found = trace.structure
            now = _sizes(trace), described(trace)
            if found is not None and known == now:
                return found
            found = self._find(structure_key(trace))
            template, program = trace.template, trace.program
            is_whole = template is not None and len(template.types) == len(program.types)
            if found is not None and template is not None and is_whole and len(template.eqns) == len(program.eqns):
                template.structure = found, described(trace)
        except NotCompilableError as error:
            found = Structure()
            found.refused = str(error)
            return found
        trace.structure = now, found
        return found

    def _own_structure(self, trace: Trace) -> Structure:
        """Return the structure of a trace from a file: its ops are checked on its values, so it shares no functions."""
        sizes, found = trace.structure
        if found is None or sizes != _sizes(trace):
            found = Structure()
            trace.structure = _sizes(trace), found
        return found

    def _seen_again(self, found: Structure) -> Structure:
        found.sights += 1
        if found.sights == 2:
            self._credit = min(self._credit + 1, CREDIT)
        return found

    def _find(self, key: Hashable) -> Structure | None:
        with _lock:
            found = self._structures.get(key)
            if found is None:
                mark = hash(key)
                if self._credit > 0 or settings.mode == "always":
                    self._credit -= 1
                elif mark not in self._seen:
                    self._seen[mark] = None
                    if len(self._seen) > 4 * STRUCTURES:
                        self._seen.popitem(last=False)
                    return None
                found = self._structures[key] = Structure()
                if len(self._structures) > STRUCTURES:
                    self._structures.popitem(last=False)
            else:
                self._structures.move_to_end(key)
            return self._seen_again(found)

    def clear(self) -> None:
        """Forget everything."""
        with _lock:
            self._structures.clear()
            self._seen.clear()
            self._credit = CREDIT


def _sizes(trace: Trace) -> Hashable:
    """Return the sizes of everything in the key of a trace that can grow."""
    program, facts = trace.program, trace.facts
    return tuple(map(len, (program.eqns, program.types, facts.bodies, facts.backward_functions, facts.moments)))


cache = Cache()
