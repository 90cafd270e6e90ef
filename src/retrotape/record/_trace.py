"""A trace: a program, the values kept from one run of it, and the tensors by which its vars are known.

`record` is the only one that appends to the program. Everybody else reads `program` and `facts`, which are frozen, and
may add to what is a cache: a value that was computed again, a tensor that stands for a var.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

from retrotape._types import Handle, Tensor, Variable
from retrotape.ir import Body, Builder, Facts, Program, VariableHistory
from retrotape.record._frames import FrameTable
from retrotape.record._offload import is_offloaded
from retrotape.record._tensors import TensorMap
from retrotape.tf import core
from retrotape.tf.core import identity_of
from retrotape.tf.saved_variable import SavedVariable


class Trace(ABC):
    """What one run of a program has left. Every trace is a `Recorder`; those who do not record see this of it.

    Attributes:
      program: Everything recorded so far, to be read. It grows; `snapshot` gives one that does not.
      facts: What is known of the program.
      keep: Which values stay, as `Tape` has it.
      values: By var: a tensor, or what loads one that is offloaded.
      tensors: Which tensors stand for which vars.
      frames: The places of equations, resolved to lines when somebody reads them.
      variables: The variables that were read, by identity of the handle, in that order.
      owners: By `id` of a variable: the Keras variable that it is inside of.
      python_constants: Of a tape from a file: constants that Python made, and when.
      guard: Checks what an op of a file is about to do, and has done.
      token: Another one after everything was forgotten: what was handed out before is not to be used after.
      damaged: Whether an exception has come while something was being recorded.
    """

    program: Program
    facts: Facts
    frames: FrameTable

    def __init__(self, keep: str = "needed", dtype_of: Callable[[Tensor], int] = core.eager_dtype) -> None:
        self.keep = keep
        self.drops_values = keep in ("leaves", "segments", "disk")  # that a rule reads
        self._dtype_of = dtype_of
        self.symbolic = dtype_of is not core.eager_dtype  # of a graph, which has no values
        self.clear()

    def clear(self) -> None:
        """Forget everything, in place: tapes that are open go on recording here."""
        self.damaged = True  # until `Recorder.clear` has come to its end, which an exception may interrupt
        self.values: dict[int, Any] = {}
        self.tensors = TensorMap()
        self._build(Builder(frames=FrameTable()))
        self.variables: dict[int, Variable] = {}
        self.owners: dict[int, Any] = {}
        self.stand_ins: dict[int, int] = {}  # by identity of a handle, that of the one for which it stands
        self._resources: dict[str, int] = {}  # by name of a resource, the identity of the handle
        self._named: tuple[Any, int] = None, 0  # how many of the histories these are the names of
        self.python_constants: dict[int, float] | None = None
        self.guard: Any = None
        self.token = object()

    def _build(self, builder: Builder) -> None:
        """Let the program be what `builder` builds."""
        assert isinstance(builder.program.frames, FrameTable)
        self._builder, self.program, self.facts = builder, builder.program, builder.facts
        self.frames = builder.program.frames

    def snapshot(self) -> Program:
        """Return everything recorded so far, checked; what is recorded later is not in it."""
        return self._builder.snapshot()

    @abstractmethod
    def flush(self) -> None:
        """Record the events that are waiting."""

    @abstractmethod
    def var_of(self, tensor: Tensor) -> int:
        """Return the var of a tensor; one that was not used becomes a leaf."""

    @abstractmethod
    def add_body(self, key: tuple[tuple[int, ...], bool], body: Body) -> None:
        """Remember a call that was inlined, so that it is once for all queries."""

    @abstractmethod
    def segment_size(self) -> int | None:
        """Return how many bytes recomputing may hold at a time; None where the tape is not kept in segments."""

    @abstractmethod
    def fork(self) -> Trace:
        """Return a trace that begins with this one: what is recorded there is not recorded here."""

    def explained(self) -> AbstractContextManager[None]:
        """Let errors of ops name the file that they came from, if they came from one."""
        return nullcontext() if self.guard is None else self.guard.explained()

    def stopped_by_moments(self) -> set[int]:
        """Return the vars that `tf.nn.moments` has stopped the gradient of."""
        found = (self.tensors.get(identity) for identity in self.facts.moments)
        return {var for var in found if var is not None}

    def value(self, var: int) -> Tensor | None:
        """Return a kept value, loaded if it is not in memory."""
        value = self.values.get(var)
        if value is None or not is_offloaded(value):
            return value
        loaded = value.load()
        self.tensors.alias(identity_of(loaded), var)
        if value.stays:
            self.values[var] = loaded
        return loaded

    # ------------------------------------------------------------------ variables

    def history(self, handle: Handle) -> VariableHistory | None:
        """Return the history of the variable behind a handle that was used, or behind one of which it is a copy."""
        histories, identity = self.facts.histories, identity_of(handle)
        found = histories.get(identity)
        if found is not None or identity in self.variables or self.symbolic:
            return found
        if identity not in self.stand_ins:
            self.stand_ins[identity] = self._first_of_its_name(handle)
        return histories.get(self.stand_ins[identity])

    def _first_of_its_name(self, handle: Handle) -> int:
        """Return the identity of the first handle of a variable that was used, of which this one may be a copy."""
        histories = self.facts.histories
        known, count = self._named
        if known is not histories:
            self._resources, count = {}, 0
        new = list(islice(reversed(list(histories)), len(histories) - count))
        for identity in reversed(new):
            self._resources.setdefault(core.resource_name(histories[identity].handle), identity)
        self._named = histories, len(histories)
        return self._resources.get(core.resource_name(handle), identity_of(handle))

    def owner_of(self, variable: Variable) -> Any | None:
        """Return the Keras variable that a variable is inside of, if there is one and it was read."""
        found = self.owners.get(id(variable))
        return found if found is not None else self.owners.get(id(core.whole_of(variable)))

    def is_trainable(self, variable: Variable) -> bool:
        """Return whether a variable is trainable now: where Keras has it, what Keras says."""
        owner = self.owner_of(variable)
        return bool(variable.trainable if owner is None else owner.trainable)

    def trainable(self, variables: Iterable[Variable]) -> list[Variable]:
        """Return those of some variables that are trainable now; of one that Keras has, the Keras variable.

        Of one that has a part on each device, the whole of it, once.
        """
        found = [(variable, self.owner_of(variable)) for variable in variables if self.is_trainable(variable)]
        wholes = [_first(owner, core.whole_of(variable), variable) for variable, owner in found]
        return list({id(whole): whole for whole in wholes}.values())

    def is_frozen(self, variable: Variable) -> bool:
        """Return whether a variable was made to be trained, and Keras says that it is not to be."""
        if isinstance(variable, SavedVariable):
            return variable.frozen
        return variable.trainable and not self.is_trainable(variable)

    def path_of(self, variable: Variable) -> str:
        """Return the name of a variable, of a Keras variable its path."""
        owner = self.owner_of(variable)
        return variable.name.removesuffix(":0") if owner is None else owner.path

    def name_of(self, history: VariableHistory) -> str:
        """Return the name of a variable, for messages."""
        variable = self.variables.get(history.key)
        return "a variable" if variable is None else repr(variable.name)


def _first(*values: Any) -> Any:
    """Return the first that is not None."""
    return next(value for value in values if value is not None)
