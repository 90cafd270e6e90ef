"""Record what variables hold: one var per value, and which updates are known to be missing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from retrotape._types import Handle, Tensor
from retrotape.ir import Builder, GrowingFacts, TensorType, VariableHistory
from retrotape.record._offload import is_offloaded
from retrotape.record._trace import Trace
from retrotape.record._traits import TRAINABLE
from retrotape.tf import functions, hooks
from retrotape.tf.buffers import share_buffer
from retrotape.tf.core import identity_of

_Method = TypeVar("_Method", bound=Callable[..., Any])


def whole(method: _Method) -> _Method:
    """Mark the trace as damaged if an exception, such as KeyboardInterrupt, leaves a change half done."""

    @wraps(method)
    def change(self: Histories, *args: Any) -> Any:
        try:
            return method(self, *args)
        except BaseException:
            self.damaged = True
            raise

    return cast(_Method, change)


def same(left: Tensor, right: Tensor) -> bool:
    """Return whether two values are bitwise equal."""
    one, other = np.asarray(left.numpy()), np.asarray(right.numpy())
    if one.dtype.hasobject or one.dtype.kind == "S":  # texts
        return one.shape == other.shape and bool(np.all(one == other))
    return one.tobytes() == other.tobytes()


class Histories(Trace):
    """The part of a recorder that tracks tensors and variables."""

    @property
    def facts(self) -> GrowingFacts:
        """What is known about the program."""
        return self._view().facts

    @abstractmethod
    def _built(self) -> Builder:
        """Return the program under construction, to be appended to."""

    def clear(self) -> None:
        """Forget everything, in place."""
        super().clear()
        # Variables that may have an unrecorded update, and whether they certainly have one.
        self._stale: dict[int, bool] = {}
        self.began = hooks.now()
        self.copied_on_read: set[int] = set()  # variables whose reads are copies, since slices of them were updated

    # ------------------------------------------------------------------ tensors

    def var_of(self, tensor: Tensor) -> int:
        """Return the var of an input; an unknown tensor becomes a leaf."""
        known = self.tensors.by_identity
        var = known.get(identity_of(tensor))
        if var is None and self.tensors.recomputed:
            var = self.tensors.resolve(identity_of(tensor))
        if var is None:
            var = self._new_leaf(self._type_of(tensor))
            known[identity_of(tensor)] = var
            self.values[var] = tensor
        return var

    def _type_of(self, tensor: Tensor) -> TensorType:
        return TensorType(self._dtype_of(tensor), self._shape_of(tensor))

    def _new_leaf(self, kind: TensorType) -> int:
        try:  # as `whole` does, inlined: this runs for every leaf
            var = self._built().leaf(kind)
            if kind.dtype not in TRAINABLE:
                self._built().facts.discrete.add(var)
        except BaseException:
            self.damaged = True
            raise
        return var

    def _define(self, outputs: Iterable[Tensor]) -> tuple[int, ...]:
        """Create the vars that the next equation defines."""
        builder = self._built()
        outs = builder.define([self._type_of(tensor) for tensor in outputs])
        for var, tensor in zip(outs, outputs, strict=True):
            self.tensors.alias(identity_of(tensor), var)
            if builder.types[var].dtype not in TRAINABLE:
                builder.facts.discrete.add(var)
        return outs

    # ------------------------------------------------------------------ variables

    @whole
    def history_at(self, handle: Handle, kind: TensorType | None = None) -> VariableHistory | None:
        """Return the history of the variable behind a handle, created if needed; None for any other resource."""
        history = self.history(handle)
        if history is None:
            held = kind or functions.handle_type(handle)
            if held is None:
                return None
            facts, first = self._built().facts, self._new_leaf(TensorType(*held))
            key = identity_of(handle)
            history = facts.histories[key] = VariableHistory(key, handle, [first])
            facts.history_of[first] = history
            if self._stale.pop(identity_of(handle), False):  # its initial value was never read
                self._add_unrecorded_update(history)
        return history

    def stand_in(self, handle: Handle) -> int:
        """Return a new var of the type of a variable."""
        held = functions.handle_type(handle)
        assert held is not None
        return self._new_leaf(TensorType(*held))

    def mark_stale(self) -> None:
        """Mark all variables as possibly stale: writes were not counted for some time."""
        for identity in self.facts.histories:
            self._stale.setdefault(identity, False)

    def mark_written(self, identity: int) -> None:
        """Mark a variable as having an unrecorded update, whatever its new value."""
        self._stale[self.stand_ins.get(identity, identity)] = True

    def unread(self) -> list[Handle]:
        """Return the handles of variables that have not been read since they were last assigned."""
        return [history.handle for history in self.facts.histories.values() if history.current not in self.values]

    def copied(self) -> list[Handle]:
        """Return the handles of variables whose kept values are copies, which do not reveal a later write."""
        histories = self.facts.histories
        return [histories[identity].handle for identity in self.copied_on_read if identity in histories]

    def hold(self, handle: Handle, value: Tensor) -> None:
        """Keep `value` as the current value of a variable, and map it to its var, so that uses of it are connected."""
        version = self.facts.histories[identity_of(handle)].current
        self.tensors.alias(identity_of(value), version)  # first: a kept value must be known by identity
        self.values[version] = value

    def _check_read(self, history: VariableHistory, value: Tensor) -> None:
        """Add a version if the value that was read differs from the one on record."""
        written = self._stale.pop(history.key, None)
        if self.symbolic or (written is False and self._is_unchanged(history, value)):
            return
        held = self.values.get(history.current)
        if written is None and (held is None or is_offloaded(held) or share_buffer(held, value) or same(held, value)):
            return  # the last comparison is for variables whose reads are copies
        self._add_unrecorded_update(history)

    def _add_unrecorded_update(self, history: VariableHistory) -> None:
        """Add a version whose origin is unknown."""
        builder = self._built()
        version = self._new_leaf(builder.types[history.current])
        builder.facts.add_version(history.key, history.handle, version, len(builder.eqns) - 1)
        if version not in builder.facts.discrete:
            builder.facts.unrecorded_updates.add(version)

    def _is_unchanged(self, history: VariableHistory, value: Tensor) -> bool:
        held = self.value(history.current)
        return held is not None and share_buffer(held, value)

    def adopt(self, handle: Handle, value: Tensor) -> None:
        """Start the history of a new variable with `value`."""
        key = identity_of(handle)
        var = self.var_of(value)
        self._built().facts.histories[key] = VariableHistory(key, handle, [var])

    def holds(self, handle: Handle) -> bool:
        """Return whether the current value of a variable is kept and certainly current."""
        history = self.facts.histories.get(identity_of(handle))
        return history is not None and history.current in self.values and not self.is_stale(handle)

    def is_stale(self, handle: Handle) -> bool:
        """Return whether a variable may have changed since it was last read."""
        return identity_of(handle) in self._stale and identity_of(handle) in self.facts.histories

    def _drop_uninitialized(self, history: VariableHistory | None) -> None:
        """Make the value that a call assigned the first one, if the variable was uninitialized before the call."""
        if history is not None and len(history.versions) == 2 and history.versions[0] not in self.values:
            facts = self._built().facts
            facts.uninitialized.add(history.versions[0])
            del facts.history_of[history.versions[0]], history.versions[0], history.made_by[0]

    def _update(self, history: VariableHistory, opaque: bool) -> int:
        """Return a new version of a variable, defined by the next equation."""
        builder, facts = self._built(), self._built().facts
        kind = builder.types[history.current]
        (version,) = builder.define([kind])
        facts.add_version(history.key, history.handle, version, len(builder.eqns))
        facts.assigned.add(version)
        if opaque:
            facts.opaque.add(version)
        if kind.dtype not in TRAINABLE:
            facts.discrete.add(version)
        return version
