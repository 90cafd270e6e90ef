"""A saved tape as data: read without TensorFlow, and nothing in it is trusted before it is checked."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from tempfile import TemporaryDirectory
from typing import NamedTuple

from retrotape._types import Json
from retrotape.cli._start import start_tensorflow
from retrotape.errors import AmbiguousNameError, CorruptTapeError, UnknownNameError
from retrotape.files import store
from retrotape.files.places import local
from retrotape.ir import LEAF, NONSENSE, Eqn, Fields, Frame, TensorType, makes_no_sense, printable_frame, read_program


class Variable(NamedTuple):
    """A variable: its name, and every value that it had."""

    name: str
    trainable: bool
    versions: tuple[int, ...]
    frozen: bool


class Named(NamedTuple):
    """What a name refers to; for a variable, its last value."""

    name: str
    var: int
    variable: Variable | None


class SavedTape:
    """The contents of a file.

    Args:
      container: The open file.
      path: What the user has called it: for a folder of shards, another path than that of the file.
    """

    def __init__(self, container: store.Container, path: str | os.PathLike[str] | None = None) -> None:
        self.container = container
        self.path = container.path if path is None else os.fsdecode(path)
        self.fields: Mapping[str, Json] = container.meta
        self.program = read_program(container.entry("program.txt").decode())
        self.checked = Fields(self.fields, self.program)
        self.variables = [Variable(*row[:3], row.frozen) for row in self.checked.variables]
        self.names = [self._named(name, *what) for name, what in self.checked.names.items()]
        self.redacted = frozenset(self.checked.redacted)

    @cached_property
    def functions(self) -> Json:
        """The backward functions of custom gradients, as stored."""
        return self.container.document("functions.json")

    @property
    def format(self) -> str:
        """The name of the format."""
        begin = re.match(rb'\{"format":"([^"]*)"', self.container.entry("tape.json"))
        return begin[1].decode() if begin else "?"

    @cached_property
    def lines(self) -> list[str]:
        """Each equation as a line of text."""
        first = len(self.program.leaves())
        written = str(self.program).split("\n")[first : first + len(self.program.eqns)]
        return [line.rpartition(" @")[0] for line in written]

    def kept(self, var: int) -> store.TensorInfo | None:
        """Return the metadata of the value of a var, if the file has it."""
        return self.container.tensors.get(f"v/{var}")

    def check_sum(self, var: int) -> str | None:
        """Return the checksum of the value of a var, if the file has it."""
        info = self.kept(var)
        return None if info is None else info.sha256

    @cached_property
    def lost(self) -> frozenset[int]:
        """Vars whose value was left out of the file and cannot be recomputed."""
        redacted = (named.var for named in self.names if named.name in self.redacted and named.variable is None)
        return frozenset(var for var in (*self.program.leaves(), *redacted) if self.kept(var) is None)

    def place(self, eqn: Eqn) -> Frame:
        """Return the line of user code, safe to print."""
        return printable_frame(self.program.frames[eqn.frame])

    @cached_property
    def var_names(self) -> dict[int, str]:
        """Names of vars: the user's names first, then those of variables."""
        found = {named.var: named.name for named in self.names if named.variable is None}
        for variable in self.variables:
            for number, var in enumerate(variable.versions):
                found.setdefault(var, variable.name if number == 0 else f"{variable.name}, value {number}")
        return found

    def _named(self, name: str, kind: str, number: int) -> Named:
        variable = self.variables[number] if kind == "variable" else None
        return Named(name, number if variable is None else variable.versions[-1], variable)

    def find(self, name: str) -> Named:
        """Return what a name, or the end of one, refers to."""
        known = {named.name: named for named in self.names}
        ending = [named for named in self.names if named.name.endswith(f"/{name}")]
        if name in known:
            return known[name]
        if len(ending) > 1:
            raise AmbiguousNameError(name, [named.name for named in ending])
        if not ending:
            raise UnknownNameError(name, list(known))
        return ending[0]

    def kind(self, named: Named) -> str:
        """Return what a name is: variable, input or target."""
        if named.variable is not None:
            return "variable"
        return "input" if self.program.producers[named.var] == LEAF else "target"

    def type_of(self, var: int) -> TensorType:
        """Return the dtype and shape of a var."""
        return self.program.types[var]


@contextmanager
def open_saved(path: str | os.PathLike[str]) -> Iterator[SavedTape]:
    """Open a saved tape, or raise if it is malformed. The shards of several workers are opened as one tape."""
    place = local(path)
    if store.is_sharded(place):
        place = merged(os.path.abspath(place))
    with store.open_tape(place) as container:
        with refuse_nonsense(container.path):
            tape = SavedTape(container, path)
        yield tape


@contextmanager
def refuse_nonsense(path: str) -> Iterator[None]:
    """Raise CorruptTapeError for a malformed file."""
    try:
        yield
    except NONSENSE as error:
        raise CorruptTapeError(path, makes_no_sense(error)) from error


@lru_cache(8)
def merged(folder: str) -> str:
    """Return a file of the whole tape in a folder of shards; it is removed when the process ends."""
    store.read_manifest(folder)  # TensorFlow takes seconds: a folder without one is refused before
    start_tensorflow()
    from retrotape.tape.loaded import load

    place = TemporaryDirectory(prefix="retrotape-")
    atexit.register(place.cleanup)
    path = os.path.join(place.name, "whole.tape")
    load(folder).save(path)
    return path
