"""What is known about calls of a step with one kind of arguments: recorded paths, each with the state it depends on."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any, NamedTuple
from weakref import ref

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.lower import NotCompilableError
from retrotape.playback._arguments import Arguments, Pack
from retrotape.playback._guards import State, StateGuard
from retrotape.playback._path import Path, Segment
from retrotape.playback._recorded import Recorded
from retrotape.playback._tree import Node, Options, Played, play
from retrotape.record import Trace
from retrotape.tf.core import identity_of
from retrotape.tf.hook_table import users
from retrotape.tf.hooks_ops import stamp_writes
from retrotape.tf.lowering import LoweredFunction

_numbers = count()
AUDIT = 8  # this call that a recording fits is recorded anew, and those with the numbers of its powers


class Entry:
    """A recording, as a row of the table.

    Attributes:
      trace: Its trace, with leaves only.
      state: The Python state that it depends on.
      path: Its ops.
      pack: Makes results.
      why: Why it was recorded.
      plays: How often it was played back.
      signature: The arguments, in words.
      checks: Where Python read a value.
      ops: How many ops it has.
      inputs: The identities of the tensors that were passed in.
      outputs: Those of the tensors that it returned.
    """

    def __init__(self, recorded: Recorded, arguments: Arguments, why: str, signature: str) -> None:
        self.trace: Trace = recorded.trace
        self.state = recorded.state
        self.path: Path = recorded.path
        self.pack: Pack = recorded.results.pack
        self.why, self.signature, self.plays = why, signature, 0
        self.number = next(_numbers)
        self.checks = [check.place for segment in recorded.path.segments for check in segment.checks]
        self.ops = sum(len(segment.eqns) for segment in recorded.path.segments)
        self.inputs = [identity_of(tensor) for tensor in arguments.tensors]
        self.outputs = [identity_of(tensor) for tensor in recorded.results.tensors]
        self._is_first = True

    def tensors(self, values: dict[int, Tensor]) -> list[Tensor]:
        """Return the tensors that the step returns, given the values of vars."""
        constant = self.path.tensors
        if not constant:
            return [values[var] for var in self.path.outputs]
        return [constant[var] if var in constant else values[var] for var in self.path.outputs]

    def release(self) -> None:
        """Drop the arguments of the recorded call, and what variables held before it."""
        if self._is_first:
            self._is_first = False
            trace = self.trace
            given = [trace.tensors.get(identity) for identity in self.inputs]
            first = [history.versions[0] for history in trace.facts.histories.values()]
            for var in (*given, *first):
                if var is not None:
                    trace.values.pop(var, None)


class Call(NamedTuple):
    """A call that was played back: the recording, the tensors passed in, and the values of vars."""

    entry: Entry
    tensors: Sequence[Tensor]
    values: dict[int, Tensor]


class Missing(NamedTuple):
    """A call is to be recorded.

    Attributes:
      why: No recording fits it; this says why.
      failed: Whether playing one back has raised.
      is_audit: Whether one fits, and is to be compared with what is recorded now.
    """

    why: str
    failed: bool = False
    is_audit: bool = False


class _Here(threading.local):
    def __init__(self) -> None:
        self.token = object()


_here = _Here()
playing = new_lock()  # held while variables are read and assigned: eager updates lose nothing either


class Variant:
    """The recordings of one Python state, on one thread: some settings of Keras are different on another.

    Args:
      arguments: The arguments of the first recording.
      options: How functions are made.
    """

    def __init__(self, arguments: Arguments, options: Options) -> None:
        self._options, self._thread = options, _here.token
        self._first = [ref(tensor) for tensor in arguments.tensors]
        self._states: list[State] = []
        self._same: list[tuple[int, int]] = []
        self.guard = StateGuard([])
        self.root: Node | None = None
        self.loops: dict[int, LoweredFunction] = {}  # by number of steps in one call
        self.entries: dict[int, Entry] = {}  # by `id` of the last node
        self.calls = 0  # that a recording fitted

    def is_due(self, calls: int = 1) -> bool:
        """Return whether one of the next calls that a recording fits is to be recorded nevertheless."""
        return any(self.calls < AUDIT**power <= self.calls + calls for power in range(1, 12))

    def fits(self, arguments: Arguments) -> str | None:
        """Return what differs from the state of this variant; None if nothing does."""
        if _here.token is not self._thread:
            return "the thread"
        if self.guard.tensors and self._also_held(arguments.tensors) != self._same:
            return "which arguments the step also refers to by another name"
        return self.guard.changed()

    def _also_held(self, tensors: Sequence[Any]) -> list[tuple[int, int]]:
        """Return which arguments the step also refers to by another name: positions, and `id`s."""
        held = self.guard.tensors
        return [(position, id(one)) for position, one in enumerate(tensors) if id(one) in held]

    def play(self, arguments: Arguments) -> Call | Missing:
        """Play a call back."""
        assert self.root is not None
        inputs = next(iter(self.entries.values())).path.inputs
        values = dict(zip(inputs, arguments.tensors, strict=True))
        self.stamp()
        found = play(self.root, values)
        if not isinstance(found, Played):
            node, _ = found
            check = node.segment.checks[0]
            return Missing(f"{'a shape' if check.of_shape else 'a value'} differs, at {check.place}")
        entry = self.entries[id(found.node)]
        entry.plays += 1
        return Call(entry, arguments.tensors, values)

    def stamp(self) -> None:
        """Assign a time to writes that are about to happen, if a tape records on another thread."""
        if users:
            stamp_writes([update.handle for entry in self.entries.values() for update in entry.path.updates])

    def add(self, entry: Entry, arguments: Arguments) -> None:
        """Add a path.

        Raises:
          NotCompilableError: If it differs from a known one before Python read a value that differs.
        """
        # Each path depends on what its own code refers to.
        self._states.append(entry.state)
        self.guard = StateGuard(self._states)
        same = self._also_held(arguments.tensors)
        if self.entries and same != self._also_held([one() for one in self._first]):
            raise NotCompilableError("some of its paths refer to tensors that are also passed in")
        self._same = same
        path = entry.path
        difference = self.difference(path)
        if difference is not None:
            raise NotCompilableError(difference)
        expected: tuple[Hashable, ...] = ()
        parent: Node | None = None
        for number, segment in enumerate(path.segments):
            node = self.root if parent is None else parent.children.get(expected)
            if node is None:
                node = Node(segment, path, number == len(path.segments) - 1, self._options)
                if parent is None:
                    self.root = node
                else:
                    parent.children[expected] = node
            node.changed()
            parent, expected = node, segment.expected
        assert parent is not None
        self.entries[id(parent)] = entry
        self.loops.clear()

    def difference(self, path: Path) -> str | None:
        """Return how a path differs from a known one before Python read a value that differs; None if it does not."""
        node = self.root
        for number, segment in enumerate(path.segments):
            if node is None:
                return None
            if (node.segment.key, node.segment.checks) != (segment.key, segment.checks) or (
                node.is_end != (number == len(path.segments) - 1)
            ):
                found = _difference(node.path, node.segment, path, segment)
                return (
                    f"it ran other ops although nothing has changed that it is known to depend on: {found}; pass what "
                    "it depends on as an argument"
                )
            node = node.children.get(segment.expected)
        return None


def _difference(old_path: Path, old: Segment, new_path: Path, new: Segment) -> str:
    """Return how a segment differs from a known one."""
    keys: list[Any] = [old.key, new.key]
    (old_ops, old_constants), (new_ops, new_constants) = keys
    for one, other in zip(old_ops, new_ops, strict=False):
        if one != other:
            return f"{other.op} where {one.op} ran before" if one.op != other.op else f"{one.op} ran in another way"
    if len(old_ops) != len(new_ops):
        return f"{len(new_ops)} ops where {len(old_ops)} ran before"
    for (var, one), (_, other) in zip(old_constants, new_constants, strict=False):
        if one != other:
            return f"{new_path.constants.get(var)} where {old_path.constants.get(var)} was used before"
    return "Python read other values"


class Known:
    """What is known about one kind of arguments.

    Attributes:
      variants: By Python state, the one used last first.
      reason: Why such calls are not played back; None if they are.
      unsettled: How many calls in a row created variables, or changed layers.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = objects  # their ids are part of the key
        self.variants: list[Variant] = []
        self.reason: str | None = None
        self.unsettled = 0

    def find(self, arguments: Arguments) -> tuple[Variant | None, str]:
        """Return the variant for the current Python state; or None, and what differs."""
        why = "first call with such arguments"
        for position, variant in enumerate(self.variants):
            changed = variant.fits(arguments)
            if changed is None:
                if position:
                    self.variants.insert(0, self.variants.pop(position))
                return variant, ""
            why = f"{changed} has changed" if position == 0 else why
        return None, why

    def count(self) -> int:
        """Return the number of recordings."""
        return sum(len(variant.entries) for variant in self.variants)
