"""Follow the program of the last time: while the same ops run, nothing is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from retrotape._types import Handle, Place, Tensor
from retrotape.ir import CUSTOM, BackwardFunction, Builder, HostRead, VariableHistory
from retrotape.record._attributes import canonical
from retrotape.record._template import ACCESS, CUSTOM_STEP, PLAIN, READ, Template
from retrotape.record._traits import RESOURCE, makes_copies
from retrotape.tf import core, functions
from retrotape.tf.core import identity_of, shape_of, tf

if TYPE_CHECKING:
    from retrotape.record._histories import Histories
    from retrotape.record._run import Run


_PLAIN_ATTRS = frozenset((str, bytes, int, bool, float, type(None), tf.DType, tf.TensorShape))


class Follower:
    """Compares the events of one run with a template.

    Vars are numbered as in the template, so that tensors and values are those of the program that would be recorded.

    Attributes:
      template: The template.
      index: How many of its equations have run.
      count: How many of its vars exist.
      handles: The handles of the variables used so far, by slot: which of the template's variables each stands for.
      slots: The slots, by identity of the handle.
      histories: The histories of the template, by identity of the handle; filled when someone looks them up.
      host_reads: What Python has read, as arguments of `Recorder.add_host_read`.
      view: The program so far, if someone looked at it, and `stamp` at that time; `views` counts how often.
    """

    def __init__(self, recorder: Histories, template: Template, others: Sequence[Template] = ()) -> None:
        self.template, self._others = template, others
        self.index = self.count = 0
        self.handles: dict[int, Handle] = {}
        self.slots: dict[int, int] = {}
        self.histories: dict[int, VariableHistory] = {}
        self.host_reads: list[tuple[Any, ...]] = []
        self.view: Builder | None = None  # the program so far, and when it was built
        self.viewed: tuple[int, ...] = ()
        self.views = 0
        self._current: dict[int, int] = {}  # by identity of the handle: the latest version
        self._known, self._values = recorder.tensors.by_identity, recorder.values
        self._copied, self._stale, self._variables = recorder.copied_on_read, recorder._stale, recorder.variables
        self._facts = recorder._builder.facts

    def finish(self, run: Run) -> None:
        """Go to the end of the template at once, as a run did."""
        self.index, self.count = len(self.template.eqns), len(self.template.types)
        self.slots, self.handles, self.host_reads = run.slots, run.handles, run.host_reads
        histories = self.template.histories
        self._current = {key: histories[slot].current for key, slot in run.slots.items()}

    def stamp(self) -> tuple[int, ...]:
        """Return numbers that change with what was followed so far."""
        return self.index, self.count, len(self.host_reads)

    def build(self) -> Builder:
        """Return the program of what was followed so far."""
        builder = self.template.builder(self.index, self.count, self.handles, self._facts)
        frames: Any = builder.program.frames
        builder.facts.host_reads.extend(
            HostRead(identity, time, frames.number(place), method, moment)
            for identity, time, place, method, moment in self.host_reads
        )
        return builder

    @property
    def complete(self) -> bool:
        """Whether everything in the template has run, and nothing else."""
        template = self.template
        return self.index == len(template.eqns) and self.count == len(template.types) and self._same_moments()

    def _same_moments(self) -> bool:
        moments, expected = self._facts.moments, self.template.moments
        return (not moments and not expected) or {self._known.get(identity) for identity in moments} == expected

    def current(self, handle: Handle) -> int | None:
        """Return the latest version of a variable; None if it was not used."""
        return self._current.get(identity_of(handle))

    def unread(self) -> list[Handle]:
        """Return the handles of variables that have not been read since they were last assigned."""
        return [self.handles[self.slots[key]] for key, var in self._current.items() if var not in self._values]

    def follow(self, events: Sequence[Any]) -> int:
        """Return how many of the events are those of the template; the program differs from the next one on."""
        done = self._follow(events)
        tried: list[Template] = []  # at the event that differs
        while done < len(events):
            tried.append(self.template)
            if not self._switch(events[done], tried):
                break
            more = self._follow(events[done:])
            if more:
                done, tried = done + more, []
        return done

    def _follow(self, events: Sequence[Any]) -> int:
        template = self.template
        steps, last = template.steps(), len(template.eqns)
        known, values, types, times = self._known, self._values, template.types, self._facts.times
        get, dtype_of = known.get, core.eager_dtype
        number = 0
        for op, inputs, attrs, outputs, place, recompute, time in events:
            index = self.index
            if index == last:
                return number
            kind, name, given, ins, outs, shapes, where, keep = steps[index] or template.step(index)
            if recompute or place != where or ((given != attrs or name != op) and not self._learn(op, attrs)):
                return number
            if kind == PLAIN:
                start = count = self.count
                fits = len(inputs) == len(ins) and len(outputs) == len(outs)
                for tensor, var in zip(inputs, ins):  # noqa: B905 - compared above
                    identity = identity_of(tensor)
                    found = get(identity)
                    if found != var:
                        if found is not None or var != count or types[var] != (dtype_of(tensor), shape_of(tensor)):
                            fits = False
                            break
                        known[identity] = var
                        values[var] = tensor
                        count += 1
                for tensor, shape in zip(outputs, shapes):  # noqa: B905
                    if shape_of(tensor) != shape:
                        fits = False
                if not fits:
                    self._undo(inputs, start)
                    return number
                for tensor, var in zip(outputs, outs):  # noqa: B905
                    known[identity_of(tensor)] = var
                for position in keep:
                    values[outs[position]] = outputs[position]
                self.count = count + len(outs)
            elif kind == READ:
                if not self._read(inputs[0], ins[0], outputs[0], outs[0], shapes[0]):
                    return number
            elif kind != ACCESS or not self._follow_access(op, inputs, outputs, ins, outs, shapes):
                return number
            times.append(time)
            self.index = index + 1
            number += 1
        return number

    def _undo(self, inputs: Sequence[Tensor], start: int) -> None:
        """Forget the leaves that an op defined which turned out to differ."""
        for tensor in inputs:
            identity = identity_of(tensor)
            if self._known.get(identity, -1) >= start:
                self._values.pop(self._known.pop(identity), None)
            if self._current.get(identity, -1) >= start:
                del self._current[identity], self.handles[self.slots.pop(identity)]
        self.count = start

    def _learn(self, op: Any, attrs: Any) -> bool:
        """Return whether an op is the expected one, given in another form; remember the form."""
        eqn = self.template.eqns[self.index]
        name = op if type(op) is str else op.decode()
        if name != eqn.op or eqn.op == CUSTOM or canonical(name, attrs) != eqn.attrs:
            return False
        if isinstance(attrs, tuple) and _PLAIN_ATTRS.issuperset(map(type, attrs)):
            self.template.learn(self.index, op, attrs)  # lists may change, and tensors would be kept alive
        return True

    # ------------------------------------------------------------------ variables

    def _read(self, handle: Handle, version: int, output: Tensor, var: int, shape: Any) -> bool:
        values, is_new = self._values, identity_of(handle) not in self.slots
        if shape_of(output) != shape or not self._enter(handle, version, core.eager_dtype(output), shape):
            return False
        held = None if is_new else values.get(version)
        if held is not None and not core.share_buffer(held, output):
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

    def _follow_access(
        self,
        op: Any,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        ins: tuple[int, ...],
        outs: tuple[int, ...],
        shapes: tuple[Any, ...],
    ) -> bool:
        start = self.count
        name = op if type(op) is str else op.decode()
        if not self._access(name, inputs, outputs, ins, outs, shapes):
            self._undo(inputs, start)
            return False
        return True

    def _access(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        ins: tuple[int, ...],
        outs: tuple[int, ...],
        shapes: tuple[Any, ...],
    ) -> bool:
        """Follow an op that reads slices of a variable, or updates it."""
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
        held = functions.handle_type(handle)
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

    # ------------------------------------------------------------------ custom gradients

    def follow_custom(
        self,
        name: str,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        function: Callable,
        place: Place,
        time: int,
    ) -> bool:
        """Return whether a custom gradient is that of the template, and add it."""
        if self.index == len(self.template.eqns):
            return False
        kind, _, _, ins, outs, shapes, where, keep = self.template.step(self.index)
        attrs = (("name", name.encode()),)
        if kind != CUSTOM_STEP or place != where or self.template.eqns[self.index].attrs != attrs:
            return False
        if len(inputs) + len(outputs) != len(ins) or len(outputs) != len(outs):
            return False
        if any(core.eager_dtype(tensor) == RESOURCE for tensor in inputs):
            return False
        given, start = [*inputs, *outputs], self.count
        fits = all(self._leaf_or_known(tensor, var) for tensor, var in zip(given, ins, strict=True))
        if not fits or any(shape_of(tensor) != shape for tensor, shape in zip(outputs, shapes, strict=True)):
            self._undo(given, start)
            return False
        self._known.update((identity_of(tensor), var) for tensor, var in zip(outputs, outs, strict=True))
        self._values.update((outs[position], outputs[position]) for position in keep)
        self._facts.backward_functions[self.index] = BackwardFunction(function, ins[: len(inputs)], outs)
        self._facts.times.append(time)
        self.count += len(outs)
        self.index += 1
        return True

    # ------------------------------------------------------------------ another template

    def end(self) -> None:
        """No more ops follow: choose the template that ends here, if there is one."""
        if not self.complete:
            shorter = [one for one in self._others if len(one.eqns) == self.index and len(one.types) == self.count]
            self._go_on_with(next((one for one in shorter if one.agrees(self.template, self.index)), self.template))

    def _go_on_with(self, template: Template) -> None:
        self.template, self.histories, self.view = template, {}, None

    def _switch(self, event: Any, tried: Sequence[Template]) -> bool:
        """Go on with another template that is the same so far, and expects this event; return whether there is one."""
        for other in self._others:
            if other in tried or len(other.eqns) <= self.index:
                continue
            if other.agrees(self.template, self.index) and self._expects(other, event):
                self._go_on_with(other)
                return True
        return False

    def _expects(self, template: Template, event: Any) -> bool:
        op, _, attrs, outputs, place, _, _ = event
        eqn, name = template.eqns[self.index], op if type(op) is str else op.decode()
        if eqn.op != name or template.step(self.index)[6] != place:
            return False
        kinds = [template.types[var].shape for var in eqn.outputs]
        return all(shape_of(tensor) == shape for tensor, shape in zip(outputs, kinds, strict=False)) and (
            canonical(name, attrs) == eqn.attrs
        )
