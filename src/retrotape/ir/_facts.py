"""What is known of a program besides its equations: variables, backward functions, host reads, layers.

Facts under construction grow with their program. A snapshot has a copy of its own.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

FOREVER = sys.maxsize  # the end of a layer call that has not ended
UNCOUNTED = -1  # `LayerCall.returned` of a call that failed, or that was made without values to build a model


class HostRead(NamedTuple):
    """A place where Python read a value: what ran after it may depend on that value."""

    identity: int  # of the tensor
    time: int  # on the clock of ops
    frame: int
    method: str  # that was called
    moment: int = 0  # on the clock of identities: tensors made after it have greater ones


class LayerCall(NamedTuple):
    """A call of a Keras layer."""

    path: str  # its name, after those of the layers that called it
    begin: int  # on the clock of ops
    end: int
    returned: int  # the identity of the tensor that it returned, 0 where it is not a single tensor; or UNCOUNTED


class BackwardFunction(NamedTuple):
    """The backward function of an equation that has one of its own: a custom gradient, or a call of a function."""

    function: Any  # takes cotangents; or a `FunctionProgram`, which takes `captures` first
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    captures: tuple[int, ...] = ()  # the vars that a `FunctionProgram` reads


class VariableHistory:
    """A variable as the program sees it: a var for each value that it had, oldest first.

    Attributes:
      key: The identity of the handle, which identifies the variable.
      handle: The handle.
      versions: The vars.
      made_by: The equation that made each of them, −1 for none.
    """

    __slots__ = ("handle", "key", "made_by", "versions")

    def __init__(self, key: int, handle: Any, versions: Sequence[int], made_by: Sequence[int] = (-1,)) -> None:
        self.key, self.handle = key, handle
        self.versions = list(versions)
        self.made_by = list(made_by)  # the equation that made each version, never less than the one before

    @property
    def current(self) -> int:
        """The version that an op reads now."""
        return self.versions[-1]

    def number(self, k: int) -> int:
        """Return version `k`, or from the end if negative; clamped to the versions that exist."""
        count = len(self.versions)
        return self.versions[max(0, min(k if k >= 0 else count - 1 + k, count - 1))]

    def at(self, index: int) -> int:
        """Return the version that equation number `index` read."""
        return self.versions[max(bisect_left(self.made_by, index) - 1, 0)]

    def copy(self) -> VariableHistory:
        """Return an independent copy."""
        return VariableHistory(self.key, self.handle, self.versions, self.made_by)


class Body(NamedTuple):
    """The equations of a call that was inlined: rerun op by op, and appended to the program.

    Attributes:
      outputs: The vars that stand for the results of the call, and for the final values of its variables.
      span: The range of the equations: the first, and one past the last.
      variables: Stand-ins for the variables that it was given, which must live as long as the equations are used.
      stand_ins: For each input, the key of the history of its stand-in; None where it is not a variable.
      call: The equation of the call.
      handles: The handle of the stand-in, by identity of the handle that was passed in.
    """

    outputs: tuple[int, ...]
    span: tuple[int, int]
    variables: Sequence[Any]
    stand_ins: Sequence[int | None]
    call: int
    handles: Mapping[int, Any]

    def pairs(self, facts: Facts, outputs: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return each output of the call with the var that stands for it inside."""
        versions = tuple(var for var in outputs if var in facts.history_of)
        count = len(self.outputs) - len(versions)
        return list(zip((*outputs[:count], *versions), self.outputs, strict=True))

    def assigned(self, facts: Facts) -> list[Sequence[int]]:
        """Return, for each input of the call that is a variable, the values that were assigned to it inside."""
        found = [None if key is None else facts.histories.get(key) for key in self.stand_ins]
        return [() if history is None else tuple(history.versions[1:]) for history in found]


@dataclass(frozen=True)
class Facts:
    """What is known of a program. "By var" and "by equation" mean: keyed by its number in the program.

    Attributes:
      histories: The variables, by identity of the handle.
      history_of: The same, by var: each version of a variable.
      assigned: Versions that were made by an equation.
      opaque: Versions made by an update that has no derivative rule.
      unrecorded_updates: Versions made by an update that was not recorded.
      uninitialized: Placeholder versions of new variables, before their first assignment.
      discrete: Vars of a dtype without derivative: integers, booleans, strings.
      nondifferentiable: Vars made by an op without gradient: paths may start there, but not pass through.
      backward_functions: Of custom gradients and of calls, by equation.
      calls: Calls of functions, by equation.
      bodies: Calls that were inlined, by outputs of the call and whether side outputs count.
      foreign: Equations that ran in a replica other than the tape's own.
      recomputed: Equations inside a `tf.recompute_grad`, which stock tapes do not see.
      moments: Identities of tensors whose gradient `tf.nn.moments` stopped.
      times: When each equation ran, the same on every tape that recorded it.
      host_reads: Where Python read a value.
      layer_calls: Calls of Keras layers, by when they began.
      unrecorded_spans: Intervals in which nothing was recorded, on the clock of identities.
    """

    histories: Mapping[int, VariableHistory] = field(default_factory=dict)
    history_of: Mapping[int, VariableHistory] = field(default_factory=dict)
    assigned: AbstractSet[int] = field(default_factory=set)
    opaque: AbstractSet[int] = field(default_factory=set)
    unrecorded_updates: AbstractSet[int] = field(default_factory=set)
    uninitialized: AbstractSet[int] = field(default_factory=set)
    discrete: AbstractSet[int] = field(default_factory=set)
    nondifferentiable: AbstractSet[int] = field(default_factory=set)
    backward_functions: Mapping[int, BackwardFunction] = field(default_factory=dict)
    calls: Mapping[int, Any] = field(default_factory=dict)
    bodies: Mapping[tuple[tuple[int, ...], bool], Body] = field(default_factory=dict)
    foreign: AbstractSet[int] = field(default_factory=set)
    recomputed: AbstractSet[int] = field(default_factory=set)
    moments: AbstractSet[int] = field(default_factory=set)
    times: Sequence[int] = field(default_factory=list)
    host_reads: Sequence[HostRead] = field(default_factory=list)
    layer_calls: Mapping[int, LayerCall] = field(default_factory=dict)
    unrecorded_spans: Sequence[tuple[int, int]] = field(default_factory=list)

    def copy(self) -> GrowingFacts:
        """Return an independent copy; additions to one are not visible in the other."""
        twins = {id(history): history.copy() for history in self.histories.values()}
        others = [one.name for one in fields(self) if one.name not in ("histories", "history_of")]
        return GrowingFacts(
            histories={key: twins[id(history)] for key, history in self.histories.items()},
            history_of={var: twins[id(history)] for var, history in self.history_of.items()},
            **{name: getattr(self, name).copy() for name in others},
        )


@dataclass(frozen=True)
class GrowingFacts(Facts):
    """Facts under construction: `Builder` and its owners add to them."""

    histories: dict[int, VariableHistory] = field(default_factory=dict)
    history_of: dict[int, VariableHistory] = field(default_factory=dict)
    assigned: set[int] = field(default_factory=set)
    opaque: set[int] = field(default_factory=set)
    unrecorded_updates: set[int] = field(default_factory=set)
    uninitialized: set[int] = field(default_factory=set)
    discrete: set[int] = field(default_factory=set)
    nondifferentiable: set[int] = field(default_factory=set)
    backward_functions: dict[int, BackwardFunction] = field(default_factory=dict)
    calls: dict[int, Any] = field(default_factory=dict)
    bodies: dict[tuple[tuple[int, ...], bool], Body] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    recomputed: set[int] = field(default_factory=set)
    moments: set[int] = field(default_factory=set)
    times: list[int] = field(default_factory=list)
    host_reads: list[HostRead] = field(default_factory=list)
    layer_calls: dict[int, LayerCall] = field(default_factory=dict)
    unrecorded_spans: list[tuple[int, int]] = field(default_factory=list)

    def add_version(self, key: int, handle: Any, version: int, made_by: int) -> None:
        """Add a version to a variable, or its first."""
        history = self.histories.get(key)
        if history is None:
            history = self.histories[key] = VariableHistory(key, handle, [version], [made_by])
        else:
            history.versions.append(version)
            history.made_by.append(made_by)
        self.history_of[version] = history
