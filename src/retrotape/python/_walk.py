"""A walk through everything that code depends on, while it runs: names lead to values, and values to others.

It begins with a function, and grows with each function that starts: only then it is known what is named. What was found
is what was there before that code could change it. So the same values tell what the code has changed, and what a later
run has to find again.
"""

from __future__ import annotations

import builtins
import gc
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from inspect import isfunction
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

from retrotape.python._allowed import is_atom
from retrotape.python._compare import ABSENT, Entry, read_cell, read_item, read_size
from retrotape.python._names import line_loading, names_in, nested_in
from retrotape.python._namespace import Namespace
from retrotape.python._rules import function_started, visit

MANY = 50_000  # objects


class TooManyObjectsError(Exception):
    """A walk has met more objects than can be compared."""


class Refusal(NamedTuple):
    """A value that cannot be compared, and the reason, for a message."""

    value: Any
    reason: str


class Policy(Protocol):
    """How values of libraries are followed."""

    def visit(self, walk: Walk, value: Any, kind: type, label: str) -> bool:
        """Note what a value refers to, if it is one of a library; return whether it is."""

    def on_reference(self, value: Any, owner: Any) -> None:
        """Something refers to a value: an object; a global, if that is None."""

    def finish(self, walk: Walk) -> None:
        """Note what counts only for later runs."""


class Walk:
    """What code depends on; see above.

    Args:
      policy: How values of libraries are followed.

    Attributes:
      entries: The values that count, by where they are read.
      names: The names in the code that has started.
      texts: The strings in it that may be names.
      sees_all: Whether it may look up attributes that it does not name.
      codes: The code that has started, by `id`.
      spaces: The `id`s of its globals.
      functions: The functions that were met, by the `id` of their code.
      generators: Generators of random numbers, each with its state.
      arrays: How many bytes arrays have, each with its owner.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.entries: dict[tuple[Any, ...], Entry] = {}
        self.names: set[str] = set()
        self.texts: set[str] = set()
        self.sees_all = False
        self.codes: dict[int, CodeType] = {}
        self.spaces: set[int] = set()
        self.functions: dict[int, list[FunctionType]] = {}
        self.generators: list[tuple[Any, Any]] = []
        self.arrays: list[tuple[Any, int]] = []
        self.namespaces: list[Namespace] = []
        self._refusals: list[tuple[Refusal, str]] = []
        self._seen: dict[int, Any] = {}
        self._old: set[int] = set()  # what was there before: by `id`
        self._children: dict[int, list[Any]] = {}  # of values that may be new
        self._todo: deque[tuple[Any, str, Any]] = deque()
        self._current: Any = None

    # ------------------------------------------------------------------ where it begins

    def add(self, value: Any, label: str, is_old: bool = True) -> None:
        """Note what a value refers to; `is_old` says that it is known to be older than the run."""
        self._todo.append((value, label, is_old))
        self._drain()

    def start(self, code: CodeType, space: dict[str, Any]) -> None:
        """Code is about to run for the first time: note what it names."""
        self.codes[id(code)] = code
        self.spaces.add(id(space))
        found = names_in(code)
        for name in found.globals:
            self._global(space, name)
        for name in found.modules:
            if name in sys.modules:
                self._todo.append((sys.modules[name], name, True))
        fresh = found.attributes - self.names
        self.names |= fresh
        self.texts |= found.texts
        for one in self.namespaces:
            self._name(one, one.before.keys() & fresh)
        if found.sees_all:
            self.see_all()
        for function in self.functions.get(id(code), []):
            self._current = function
            function_started(self, function)
        self._drain()

    def see_all(self) -> None:
        """From now on attributes may be looked up that no code names."""
        if not self.sees_all:
            self.sees_all = True
            for one in self.namespaces:
                self._name(one, one.unnamed())
            self._drain()

    def _name(self, namespace: Namespace, names: Iterable[str]) -> None:
        self._current = namespace.owner
        for name in list(names):
            namespace.name(self, namespace, name)

    def _global(self, space: dict[str, Any], name: str) -> None:
        label = f"the global {name!r}"
        self.note(read_item, space, name, label, owner=None, follow=True)
        if name not in space and hasattr(builtins, name):
            own = vars(builtins)
            self.note(read_item, own, name, f"the builtin {name!r}", owner=None, follow=isfunction(own.get(name)))

    # ------------------------------------------------------------------ what rules call

    def note(
        self,
        read: Callable[[Any, Any], Any],
        source: Any,
        key: Any,
        label: str,
        *,
        owner: Any,
        value: Any = None,
        follow: bool = False,
        of_library: bool = False,
    ) -> None:
        """Note a value that counts, unless it was noted before; it is read now, if it is not given.

        Without an owner it is none that code could make.
        """
        where = read, id(source), key if isinstance(key, (str, type)) else id(key)
        if where not in self.entries:
            value = read(source, key) if value is None else value
            self.entries[where] = Entry(read, source, key, value, owner, label, of_library)
            if follow and value is not ABSENT:
                self.follow(value, label)

    def follow(self, value: Any, label: str) -> None:
        """Visit a value that the current one refers to."""
        if is_atom(type(value)):
            return
        self._policy.on_reference(value, self._current)
        is_old = self._current is None or id(self._current) in self._old
        if not is_old:
            self._children.setdefault(id(self._current), []).append(value)
        self._todo.append((value, label, is_old))

    def open(self, namespace: Namespace, every: bool = False) -> None:
        """Note the attributes that code names, or all of them; those that it names later are noted then."""
        self.namespaces.append(namespace)
        self._name(namespace, namespace.before if every else namespace.before.keys() & self.names)
        if self.sees_all:
            self._name(namespace, namespace.unnamed())

    def refuse(self, value: Any, label: str, reason: str) -> None:
        """A value cannot be compared."""
        self._refusals.append((Refusal(value, reason), label))

    # ------------------------------------------------------------------ how it goes on

    def _drain(self) -> None:
        while self._todo:
            self._visit(*self._todo.popleft())
        self._current = None

    def _visit(self, value: Any, label: str, is_old: bool) -> None:
        kind = type(value)
        if is_atom(kind):
            return
        if is_old and id(value) not in self._old:
            self._make_old(value)
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if len(self._seen) > MANY:
            raise TooManyObjectsError(f"it refers to more than {MANY} objects, which may change")
        self._current = value
        if not self._policy.visit(self, value, kind, label):
            visit(self, value, kind, label)

    def _make_old(self, value: Any) -> None:
        todo = [value]
        while todo:
            one = todo.pop()
            if id(one) not in self._old:
                self._old.add(id(one))
                todo += self._children.pop(id(one), [])

    # ------------------------------------------------------------------ what it has found

    def finish(self, new: Collection[int]) -> None:
        """Drop what was made by the run, given the `id`s of objects that are new, and note what is missing."""
        self._policy.finish(self)
        self._new = new
        for one in self.namespaces:
            if one.is_lazy:
                for name in [name for name in self.names - one.before.keys() if name in one.space]:
                    self.note(read_item, one.space, name, f"{one.label}.{name}", owner=one.owner)
                continue
            if one.is_sized:
                self.note(read_size, one.space, None, f"which attributes {one.label} has", owner=one.owner)
            for name in self.names - one.before.keys():
                may_be = not one.is_sized and (name in self.texts or "AttributeError" in self.names)
                if name in one.of_class or (may_be and one.may_miss and one.counts(name)):
                    label = f"{one.label}.{name}"
                    self.note(read_item, one.space, name, label, owner=one.owner, value=ABSENT)
        self._drain()
        self.entries = {key: one for key, one in self.entries.items() if not self.is_new(one.owner)}

    def is_new(self, value: Any) -> bool:
        """Return whether a value was made by the run."""
        if value is None or id(value) in self._old or isinstance(value, (type, ModuleType)):
            return False
        return id(value) in self._new or not gc.is_tracked(value)

    def has_met(self, value: Any) -> bool:
        """Return whether the code refers to a value."""
        return id(value) in self._seen

    def is_referred(self, value: Any) -> bool:
        """Return whether something refers to a value that is known to be older than the run."""
        return id(value) in self._old

    def refusals(self) -> Iterator[str]:
        """Yield why later runs cannot be compared with this one."""
        for (value, reason), label in self._refusals:
            if not self.is_new(value):
                quoted = re.search(r"'(\w+)'", label)
                name = quoted[1] if quoted else label.rpartition(".")[2]
                yield f"it depends on {label}, {reason}{line_loading(self.codes.values(), name)}"

    def changes(self) -> Iterator[tuple[str, str, bool]]:
        """Yield what has changed: what a message calls it, a name in it, and whether it is a library's."""
        for entry in list(self.entries.values()):
            label = entry.changed() if entry.read is not read_size else None
            if label is not None:
                yield label, entry.key if isinstance(entry.key, str) else "", entry.of_library
        for one in self.namespaces:
            name = None if self.is_new(one.owner) else one.changed()
            if name is not None:
                yield f"{one.label}.{name}", name, False
            added = [] if one.is_whole or one.is_lazy or self.is_new(one.owner) else one.added(self.names)
            for name in added:
                yield f"{one.label}.{name}", name, True

    def knows(self, code: CodeType, values: Mapping[str, Any]) -> bool:
        """Return whether a function with this code was met whose closure has these values, or was made by the run."""
        for function in self.functions.get(id(code), []):
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            if all(read_cell(cells[name], None) is value for name, value in values.items()):
                return True
        return any(code is not one and code in nested_in(one) for one in self.codes.values())
