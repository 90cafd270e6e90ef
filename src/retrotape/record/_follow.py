"""Follow the program of the last time: while the same ops run, nothing is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from retrotape._types import Place, Tensor
from retrotape.ir import CUSTOM, BackwardFunction, Builder, HostRead
from retrotape.record._attributes import canonical
from retrotape.record._followed_variables import FollowedVariables
from retrotape.record._position import Passed, Position
from retrotape.record._template import ACCESS, CUSTOM_STEP, PLAIN, READ, Template
from retrotape.record._traits import RESOURCE
from retrotape.tf import core
from retrotape.tf.core import identity_of, shape_of, tf

if TYPE_CHECKING:
    from retrotape.record._histories import Histories
    from retrotape.record._run import Run


_PLAIN_ATTRS = frozenset((str, bytes, int, bool, float, type(None), tf.DType, tf.TensorShape))


class Follower(FollowedVariables):
    """Compares the events of one run with a template.

    Vars are numbered as in the template, so that tensors and values are those of the program that would be recorded.

    Attributes:
      host_reads: What Python has read, as arguments of `Recorder.add_host_read`.
      view: The program so far, if someone looked at it, and `stamp` at that time; `views` counts how often.
    """

    def __init__(self, recorder: Histories, template: Template, others: Sequence[Template] = ()) -> None:
        super().__init__(recorder, template, others)
        self.host_reads: list[tuple[Any, ...]] = []
        self.view: Builder | None = None  # the program so far, and when it was built
        self.viewed: tuple[int, ...] = ()
        self.views = 0
        self._facts = recorder._builder.facts

    def position(self) -> Position:
        """Return where in the template the run is, and what belongs to the run besides."""
        known = self._known.get
        stopped = frozenset([known(identity) for identity in self._facts.moments])
        return Position(self.index, self.count, stopped, len(self._facts.layer_calls), len(self.host_reads))

    def skip(self, passed: Passed) -> None:
        """Go on after ops that did not run: a compiled function has computed what they would have."""
        self._known.update((identity_of(tensor), var) for var, tensor in passed.tensors.items())
        self._values.update(passed.values)
        self._facts.times.extend(passed.times)
        self.index, self.count = passed.eqns, passed.size

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

    def follow(self, events: Sequence[Any]) -> int:
        """Return how many of the events are those of the template; the program differs from the next one on."""
        done = self._follow(events)
        tried: list[Template] = []  # at the event that differs
        while done < len(events):
            tried.append(self.template)
            other = self.expecting(events[done], tried)
            if other is None:
                break
            self.go_on_with(other)
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
            if recompute or place != where or ((given != attrs or name != op) and not self._has_same_attrs(op, attrs)):
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

    def _has_same_attrs(self, op: Any, attrs: Any) -> bool:
        """Return whether an op is the expected one, given in another form; remember the form."""
        eqn = self.template.eqns[self.index]
        name = op if type(op) is str else op.decode()
        if name != eqn.op or eqn.op == CUSTOM or canonical(name, attrs) != eqn.attrs:
            return False
        if isinstance(attrs, tuple) and _PLAIN_ATTRS.issuperset(map(type, attrs)):
            self.template.set_given_attrs(self.index, op, attrs)  # lists may change, and tensors would be kept alive
        return True

    def go_on_with(self, template: Template) -> None:
        """Follow another template, which is the same so far."""
        if template is not self.template:
            self.histories, self.view = {}, None
            self.template = template  # last: an exception may interrupt this

    def end(self) -> None:
        """No more ops follow: choose the template that ends here, if there is one."""
        if not self.complete:
            self.go_on_with(self.ending() or self.template)

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
