"""A trace: a program, the values kept from one run of it, and the tensors by which its vars are known.

Only `record` appends to the program. Other code reads `program` and `facts`, which are read-only there, and may add to
the caches: a recomputed value, one more tensor of a var.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from retrotape._types import Handle, Tensor, Variable
from retrotape.ir import BackwardFunction, Body, Builder, Facts, Program, VariableHistory
from retrotape.record._frames import FrameTable
from retrotape.record._offload import is_offloaded
from retrotape.record._tensors import TensorMap
from retrotape.tf import core
from retrotape.tf.core import identity_of
from retrotape.tf.saved_variable import SavedVariable

if TYPE_CHECKING:
    from retrotape.record._run import Run
    from retrotape.record._template import Template


NO_QUERY = "no query has run on this tape"


def _symbolic_shape_of(tensor: Tensor) -> Any:
    """Return the shape of a symbolic tensor; `core.shape_of` would make an object for each dimension."""
    shape = tensor.shape
    return None if shape.rank is None else tuple(shape.as_list())


class Trace(ABC):
    """The data of one run of a program: the interface of a `Recorder` for code that does not record.

    Attributes:
      keep: Which values stay, as the argument of `Tape`.
      values: By var: a tensor, or an `Offloaded` that loads one.
      tensors: The tensors of the vars.
      variables: The variables that were read, by identity of the handle, in order of first read.
      wholes: The distributed variables that `variables` are components of, by the same keys; a component knows the
        whole only as long as that is held.
      owners: By `id` of a `tf.Variable`: the Keras variable that owns it.
      replicas: By identity of the handle, for a variable with a value of its own in each replica: which replica.
      python_constants: For a loaded tape: constants made by Python, and when.
      guard: For a loaded tape: checks ops before and after they run.
      token: Replaced by `clear`: invalidates what was handed out before.
      damaged: Whether an exception interrupted recording.
      template: What was followed to the end, or was made of this trace: `compile` stores there what it knows.
      structure: What `compile` knows about traces like this one, and the sizes of the program that it is about.
      inlined: Calls that queries see the inside of, because one asked about a value that they assigned.
      held: Bytes of recomputed values among the kept ones.
      not_compiled: Why the last query was not compiled; None if it was.
      base: The trace that this one is a fork of, if it is one; the first `base_size` vars are the same in both.
    """

    _builder: Builder

    def __init__(self, keep: str = "needed", dtype_of: Callable[[Tensor], int] = core.eager_dtype) -> None:
        self.keep = keep
        self.drops_values = keep in ("leaves", "segments", "disk")  # among those that a rule reads
        self._dtype_of = dtype_of
        self.symbolic = dtype_of is not core.eager_dtype  # recorded from a graph, which has no values
        self._shape_of = _symbolic_shape_of if self.symbolic else core.shape_of
        self.clear()

    def clear(self) -> None:
        """Forget everything, in place: open tapes continue to record here."""
        self.damaged = True  # until `Recorder.clear` completes, which an exception may interrupt
        self.values: dict[int, Any] = {}
        self.tensors = TensorMap()
        self._build(Builder(frames=FrameTable()))
        self.variables: dict[int, Variable] = {}
        self.owners: dict[int, Any] = {}
        self.wholes: dict[int, Any] = {}
        self.stand_ins: dict[int, int] = {}  # identity of a copied handle → that of the original
        self._resources: dict[str, int] = {}  # resource name → identity of the handle
        self._named: tuple[Any, int] = None, 0  # the histories that `_resources` covers, and how many of them
        self.replicas: dict[int, int] = {}
        self.python_constants: dict[int, float] | None = None
        self.guard: Any = None
        self.token = object()
        self.template: Template | None = None
        self.structure: tuple[Hashable, Any] = (), None
        self.not_compiled: str | None = NO_QUERY
        self.inlined: frozenset[int] = frozenset()
        self.held = 0
        self.base: Trace | None = None
        self.base_size = 0

    def _build(self, builder: Builder) -> None:
        """Set the program to that of `builder`."""
        assert isinstance(builder.program.frames, FrameTable)
        self._builder = builder

    def _view(self) -> Builder:
        """Return the program under construction, with everything that was recorded, to be read only."""
        return self._builder

    @property
    def program(self) -> Program:
        """Everything recorded so far, as a view that grows; `snapshot` returns one that does not."""
        return self._view().program

    @property
    def facts(self) -> Facts:
        """What is known about the program."""
        return self._view().facts

    @property
    def frames(self) -> FrameTable:
        """The places of equations, resolved to lines on demand."""
        return self._view().program.frames  # type: ignore[return-value]

    def histories(self) -> Mapping[int, VariableHistory]:
        """Return the histories of variables, by identity of the handle; only to look up their versions."""
        return self.facts.histories

    def snapshot(self) -> Program:
        """Return everything recorded so far, checked, as a program that does not grow."""
        return self._view().snapshot()

    @abstractmethod
    def followed(self) -> Template | None:
        """Return the template that this trace equals, if it does so in whole."""

    @abstractmethod
    def run(self) -> Run | None:
        """Return what this trace has besides that template, to be read only."""

    @abstractmethod
    def slots_of(self, handles: Iterable[int]) -> tuple[int | None, ...]:
        """Return the numbers of the histories of variables, in order of first use, by identities of their handles."""

    @abstractmethod
    def on_rules(self) -> None:
        """Gradient rules are about to run, not a compiled function: they read values also in the next run."""

    @abstractmethod
    def calls(self) -> Mapping[int, Any]:
        """Return the function calls among the equations, without building the program."""

    @abstractmethod
    def backward_functions(self) -> Mapping[int, BackwardFunction]:
        """Return the backward functions of equations, without building the program."""

    @abstractmethod
    def flush(self) -> None:
        """Record the pending events."""

    @abstractmethod
    def var_of(self, tensor: Tensor) -> int:
        """Return the var of a tensor; an unknown tensor becomes a leaf."""

    @abstractmethod
    def add_body(self, key: tuple[tuple[int, ...], bool], body: Body) -> None:
        """Cache an inlined call for later queries."""

    @abstractmethod
    def segment_size(self) -> int | None:
        """Return how many bytes recomputation may hold at a time; None if the tape is not kept in segments."""

    @abstractmethod
    def segment_starts(self) -> list[int]:
        """Return the first equation of each segment; none if values are not kept in segments, or were released."""

    @abstractmethod
    def may_release(self) -> bool:
        """Return whether a walk may drop kept values that it no longer needs: they can be recomputed."""

    @abstractmethod
    def release(self, var: int) -> None:
        """Drop a kept value, if it can be recomputed."""

    @abstractmethod
    def restore(self, var: int, value: Tensor) -> None:
        """Keep a recomputed value again, if it was released: a later query needs it too."""

    @abstractmethod
    def fork(self) -> Trace:
        """Return a trace that begins with this one: what is recorded there is not recorded here."""

    def explained(self) -> AbstractContextManager[None]:
        """Make errors of ops name the file that the ops came from, if any."""
        return nullcontext() if self.guard is None else self.guard.explained()

    def stopped_by_moments(self) -> set[int]:
        """Return the vars whose gradient `tf.nn.moments` stopped."""
        found = (self.tensors.get(identity) for identity in self.facts.moments)
        return {var for var in found if var is not None}

    def value(self, var: int) -> Tensor | None:
        """Return a kept value, loaded if it is offloaded."""
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
        """Return the history of the variable behind a handle, which may be a copy of the one that was used."""
        histories, identity = self.facts.histories, identity_of(handle)
        found = histories.get(identity)
        if found is not None or identity in self.variables or self.symbolic:
            return found
        if identity not in self.stand_ins:
            self.stand_ins[identity] = self._original_handle(handle)
        return histories.get(self.stand_ins[identity])

    def _original_handle(self, handle: Handle) -> int:
        """Return the identity of the first used handle of the same variable, or else that of `handle` itself."""
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
        """Return the Keras variable that owns a variable; None if there is none or it was not read."""
        found = self.owners.get(id(variable))
        return found if found is not None else self.owners.get(id(core.whole_of(variable)))

    def is_trainable(self, variable: Variable) -> bool:
        """Return whether a variable is trainable now; if Keras owns it, the Keras variable decides."""
        owner = self.owner_of(variable)
        return bool(variable.trainable if owner is None else owner.trainable)

    def trainable(self, variables: Iterable[Variable]) -> list[Variable]:
        """Return those of `variables` that are trainable now; for a variable owned by Keras, the Keras variable.

        A distributed variable is returned once, not as its parts on each device.
        """
        found = [(variable, self.owner_of(variable)) for variable in variables if self.is_trainable(variable)]
        wholes = [_first(owner, core.whole_of(variable), variable) for variable, owner in found]
        return list({id(whole): whole for whole in wholes}.values())

    def is_frozen(self, variable: Variable) -> bool:
        """Return whether a variable was created trainable but is frozen in Keras."""
        if isinstance(variable, SavedVariable):
            return variable.frozen
        return variable.trainable and not self.is_trainable(variable)

    def path_of(self, variable: Variable) -> str:
        """Return the name of a variable; the path of a Keras variable."""
        path = getattr(self.owner_of(variable), "path", None)  # a strategy's variable may own it too, and has none
        return variable.name.removesuffix(":0") if path is None else path

    def name_of(self, history: VariableHistory) -> str:
        """Return the name of a variable, for messages."""
        variable = self.variables.get(history.key)
        return "a variable" if variable is None else repr(variable.name)


def _first(*values: Any) -> Any:
    """Return the first that is not None."""
    return next(value for value in values if value is not None)
