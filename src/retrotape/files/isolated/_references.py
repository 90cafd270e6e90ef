"""References to objects of another process: by number, for as long as they are in use there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol
from weakref import finalize, ref

from retrotape.diagnose.tensors import Tensors
from retrotape.files.isolated._results import pack_result, unpack_result
from retrotape.files.isolated._wire import Plain
from retrotape.grads import Gradients
from retrotape.tf.core import tf
from retrotape.tf.saved_variable import SavedVariable
from retrotape.tf.version import Version


class HeldObjects:
    """The side that owns the objects: those that were sent are kept until the other side drops them."""

    def __init__(self, describe_tape: Callable[[Any], list[Any] | None]) -> None:
        self._describe_tape = describe_tape
        self._held: dict[int, list[Any]] = {}  # number → object, how often it was sent
        self._numbers: dict[int, int] = {}  # identity → number
        self._next = 0

    def __getitem__(self, number: int) -> Any:
        return self._held[number][0]

    def number(self, value: Any) -> int:
        """Return the number of an object that is about to be sent."""
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = self._next
            self._next += 1
            self._held[known] = [value, 0]
        self._held[known][1] += 1
        return known

    def drop(self, number: int, times: int) -> None:
        """Release an object after as many drops as it was sent."""
        entry = self._held[number]
        entry[1] -= times
        if entry[1] <= 0:
            del self._held[number], self._numbers[id(entry[0])]

    def pack(self, value: Any) -> tuple[str, Any] | None:
        """Return the representation of an object in a message."""
        if isinstance(value, tf.Tensor):
            return "tensor", [Plain(value), self.number(value)]
        if isinstance(value, SavedVariable):
            dims = None if value.shape.rank is None else value.shape.as_list()
            known = [value.name, value.dtype.as_datatype_enum, dims, value.trainable, value.frozen]
            return "variable", [*known, self.number(value)]
        if isinstance(value, Version):
            return "version", [value.variable, value.number, value.count, self.number(value)]
        if isinstance(value, Gradients):
            reasons = {id(key): value.why(key) for key in value.missing}
            return "gradients", [[key, grad, reasons.get(id(key))] for key, grad in value.items()]
        if isinstance(value, Tensors):
            return "tensors", [list(value.found), self.number(value)]
        if isinstance(value, Iterator):
            return "iterator", [self.number(value)]
        tape = self._describe_tape(value)
        return pack_result(value) if tape is None else ("tape", [*tape, self.number(value)])

    def unpack(self, kind: str, fields: Any) -> Any:
        """Return the object that the other side refers to."""
        if kind != "reference":
            raise ValueError(f"a message has {kind}, which only results have")
        return self[int(fields)]


class _Entry:
    """What is known of a remote object."""

    __slots__ = ("here", "number", "times")

    def __init__(self, number: int, here: Any) -> None:
        self.number, self.times, self.here = number, 1, ref(here)


class Connection(Protocol):
    """A connection that can send requests to the other side."""

    def fetch(self, number: int) -> Any:
        """Return the value of a variable, or of a version of one."""

    def take(self, number: int, var: int) -> Any:
        """Return one of the tensors that were found."""

    def tape(self, known: list[Any]) -> Any:
        """Return the stand-in for a tape."""


class RemoteObjects:
    """The side that uses the objects: their stand-ins, and which of them are no longer used."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}  # by number
        self._numbers: dict[int, _Entry] = {}  # by identity of the stand-in
        self._unused: list[_Entry] = []
        self._token = object()

    def unused(self) -> list[tuple[int, int]]:
        """Return the objects that the other side can drop: numbers, and how often each was sent."""
        found, self._unused = self._unused, []
        for entry in found:
            if self._entries.get(entry.number) is entry:
                del self._entries[entry.number]
        return [(entry.number, entry.times) for entry in found]

    def number(self, value: Any) -> int | None:
        """Return the number of the remote object that `value` stands for; None for anything else."""
        entry = self._numbers.get(id(value))
        return entry.number if entry is not None and entry.here() is value else None

    def pack(self, value: Any) -> tuple[str, Any] | None:
        """Return the representation of an object in a message."""
        number = self.number(value)
        return None if number is None else ("reference", number)

    def unpack(self, connection: Connection, kind: str, fields: Any) -> Any:
        """Return the stand-in for a remote object, which uses `connection` for further requests."""
        if kind not in ("tensor", "variable", "version", "gradients", "tensors", "iterator", "tape"):
            return unpack_result(kind, fields)
        if kind == "gradients":
            reasons = [(key, why) for key, _, why in fields if why is not None]
            return Gradients([(key, grad) for key, grad, _ in fields], reasons)
        *known, number = fields
        if kind == "tensors":

            def take(var: int) -> Any:
                return connection.take(number, var)

            self._register(number, take)  # shared by slices
            return Tensors(known[0], take)
        entry = self._entries.get(number)
        here = None if entry is None else entry.here()
        if entry is None or here is None:
            return self._register(number, self._stand_in(connection, kind, known, number))
        entry.times += 1
        return here

    def _stand_in(self, connection: Connection, kind: str, known: list[Any], number: int) -> Any:
        if kind == "tensor":
            return known[0]
        if kind == "variable":
            name, dtype, shape, trainable, frozen = known
            return SavedVariable(name, dtype, shape, trainable, lambda: connection.fetch(number), frozen)
        if kind == "version":
            variable, which, count = known
            return RemoteVersion(variable, which, count, number, self._token, connection.fetch)
        return connection.tape([*known, number]) if kind == "tape" else Remote(number)

    def _register(self, number: int, here: Any) -> Any:
        entry = self._entries[number] = self._numbers[id(here)] = _Entry(number, here)
        finalize(here, self._forget, id(here), entry).atexit = False
        return here

    def _forget(self, identity: int, entry: _Entry) -> None:
        if self._numbers.get(identity) is entry:
            del self._numbers[identity]
        self._unused.append(entry)  # sent with the next message: a finalizer may run at any time


class RemoteVersion(Version):
    """A value of a remote variable."""

    __slots__ = ("__weakref__",)


class Remote:
    """A remote iterator."""

    def __init__(self, number: int) -> None:
        self.number = number
