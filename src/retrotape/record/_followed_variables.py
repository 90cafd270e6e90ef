"""Compare reads and updates of variables with those of a template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from retrotape._types import Handle, Tensor
from retrotape.ir import VariableHistory
from retrotape.record._choice import Choice
from retrotape.record._template import Template
from retrotape.record._traits import RESOURCE, makes_copies
from retrotape.tf import core, functions
from retrotape.tf.buffers import share_buffer
from retrotape.tf.core import identity_of, shape_of

if TYPE_CHECKING:
    from retrotape.record._histories import Histories


class FollowedVariables(Choice):
    """The variables of a run that follows a template.

    Attributes:
      handles: The handles of the variables used so far, by slot: which of the template's variables each stands for.
      slots: The slots, by identity of the handle.
      histories: The histories of the template, by identity of the handle; filled when someone looks them up.
    """

    def __init__(self, recorder: Histories, template: Template, others: Sequence[Template]) -> None:
        super().__init__(template, others)
        self.handles: dict[int, Handle] = {}
        self.slots: dict[int, int] = {}
        self.histories: dict[int, VariableHistory] = {}
        self._current: dict[int, int] = {}  # by identity of the handle: the latest version
        self._known, self._values = recorder.tensors.by_identity, recorder.values
        self._copied, self._stale, self._variables = recorder.copied_on_read, recorder._stale, recorder.variables

    def current(self, handle: Handle) -> int | None:
        """Return the latest version of a variable; None if it was not used."""
        return self._current.get(identity_of(handle))

    def unread(self) -> list[Handle]:
        """Return the handles of variables that have not been read since they were last assigned."""
        return [self.handles[self.slots[key]] for key, var in self._current.items() if var not in self._values]

    def _undo(self, inputs: Sequence[Tensor], start: int) -> None:
        """Forget the leaves that an op defined which turned out to differ."""
        for tensor in inputs:
            identity = identity_of(tensor)
            if self._known.get(identity, -1) >= start:
                self._values.pop(self._known.pop(identity), None)
            if self._current.get(identity, -1) >= start:
                del self._current[identity], self.handles[self.slots.pop(identity)]
        self.count = start

    def _read(self, handle: Handle, version: int, output: Tensor, var: int, shape: Any) -> bool:
        values, is_new = self._values, identity_of(handle) not in self.slots
        if shape_of(output) != shape or not self._enter(handle, version, core.eager_dtype(output), shape):
            return False
        held = None if is_new else values.get(version)
        if held is not None and not share_buffer(held, output):
            return False  # a copy, or an update that was not recorded: the recorder finds out
        self._known[identity_of(output)] = var
        values.setdefault(version, output)
        values[var] = output
        self.count += 1
        return True

    def _enter(self, handle: Handle, version: int, dtype: int, shape: Any) -> bool:
        """Return whether a handle is that of the variable which has a version of the template, as its latest one.

        At its first use, a variable takes the place of one of the template.
        """
        key, slot = identity_of(handle), self.template.slots.get(version)
        if key in self._stale or slot is None:
            return False
        found = self.slots.get(key)
        if found is not None:
            return found == slot and self._current[key] == version
        if slot in self.handles or version != self.count or self.template.types[version] != (dtype, shape):
            return False
        if key not in self._variables and self._may_be_copy(handle):
            return False
        self.slots[key], self.handles[slot], self._current[key] = slot, handle, version
        self.count += 1
        return True

    def _may_be_copy(self, handle: Handle) -> bool:
        """Return whether a handle may be a copy of one that was used: the recorder knows it by the resource's name."""
        name = core.resource_name(handle)
        return any(core.resource_name(other) == name for other in self.handles.values())

    def _follow_access(self, op: Any, inputs: Sequence[Tensor], *expected: Any) -> bool:
        """Return whether an op that reads slices of a variable, or updates it, is the expected one, and add it."""
        start = self.count
        fits = self._access(op if type(op) is str else op.decode(), inputs, *expected)
        if not fits:
            self._undo(inputs, start)
        return fits

    def _access(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        ins: tuple[int, ...],
        outs: tuple[int, ...],
        shapes: tuple[Any, ...],
    ) -> bool:
        handles = [tensor for tensor in inputs if core.eager_dtype(tensor) == RESOURCE]
        versions, slots = outs[len(outputs) :], self.template.slots
        if name == "AssignVariableOp":  # the equation does not take the old value
            if len(inputs) != 2 or identity_of(inputs[0]) not in self._current or identity_of(inputs[0]) in self._stale:
                return False
            inputs = inputs[1:]
        if len(inputs) != len(ins) or len(outputs) > len(outs):
            return False
        pairs = [(tensor, var, core.eager_dtype(tensor) == RESOURCE) for tensor, var in zip(inputs, ins, strict=True)]
        # The recorder defines the first versions of variables before other leaves.
        if not all(self._enter_slice(tensor, var) for tensor, var, is_handle in pairs if is_handle):
            return False
        if versions and [slots.get(var) for var in versions] != [self.slots.get(identity_of(one)) for one in handles]:
            return False
        if not all(self._leaf_or_known(tensor, var) for tensor, var, is_handle in pairs if not is_handle):
            return False
        if any(shape_of(tensor) != shape for tensor, shape in zip(outputs, shapes, strict=False)):
            return False
        for tensor, var in zip(outputs, outs, strict=False):
            self._known[identity_of(tensor)] = var
            self._values[var] = tensor
        self._values.update((var, tensor) for tensor, var, is_handle in pairs if not is_handle)
        if makes_copies(name):
            self._copied.update(map(identity_of, handles))
        self._current.update((identity_of(handle), var) for handle, var in zip(handles, versions, strict=False))
        self.count += len(outs)
        return True

    def _enter_slice(self, handle: Handle, version: int) -> bool:
        held = (0, None) if identity_of(handle) in self.slots else functions.handle_type(handle)  # slow
        return held is not None and self._enter(handle, version, *held)

    def _leaf_or_known(self, tensor: Tensor, var: int) -> bool:
        found = self._known.get(identity_of(tensor))
        if found is None and var == self.count:
            if self.template.types[var] != (core.eager_dtype(tensor), shape_of(tensor)):
                return False
            self._known[identity_of(tensor)] = var
            self._values[var] = tensor
            self.count += 1
            return True
        return found == var
