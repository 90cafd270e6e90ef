"""A recorded run as a path: segments of equations, each followed by a check of what Python read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape._types import Handle, Tensor
from retrotape.errors import NotRecordedError, TapeUseError
from retrotape.execute import Values
from retrotape.ir import LEAF, Eqn, TensorType, bytes_of
from retrotape.lower import Computation, Simplifier, value_bytes
from retrotape.playback._pure import Pure, check_updates, purify, without_calls
from retrotape.record import RESOURCE, Trace
from retrotape.tf.core import shape_of
from retrotape.tf.nests import describe, is_variable

LARGEST = 4096  # bytes of a constant inside a function; larger ones are passed in
_VARIANT = 21


class Read(NamedTuple):
    """A value that Python read.

    Attributes:
      time: When, on the clock of ops.
      tensor: The tensor.
      place: The line of user code.
      var: Its var, if the tensor itself is not on the trace.
    """

    time: int
    tensor: Tensor
    place: str
    var: int | None = None


class Check(NamedTuple):
    """A value, or a shape, that must be the recorded one for the path to go on.

    Attributes:
      var: The var.
      of_shape: Whether only the shape is compared.
      place: Where Python read it.
    """

    var: int
    of_shape: bool
    place: str

    def value(self, tensor: Tensor) -> Hashable:
        """Return what is compared."""
        return shape_of(tensor) if self.of_shape else value_bytes(tensor)


class Update(NamedTuple):
    """A variable that gets a new value: its handle, and the vars of its first and last value."""

    handle: Handle
    first: int
    last: int


class Segment(NamedTuple):
    """Equations between two checks.

    Attributes:
      eqns: The equations.
      key: Data that are equal if the recorded equations and constants were.
      checks: What is checked after them.
      expected: The recorded values of the checks.
    """

    eqns: list[Eqn]
    key: Hashable
    checks: tuple[Check, ...]
    expected: tuple[Hashable, ...]


class Path(NamedTuple):
    """A recorded run as data.

    Attributes:
      segments: Its segments, in order.
      effects: The equations that print, or write summaries, in order; they run at the end.
      types: The types of vars.
      constants: The values of vars that are the same each time, as arrays.
      inputs: The vars of the tensors that are passed in.
      handles: The variables that it reads: by var of the first value.
      captures: Tensors that are passed in each time: by var.
      updates: The variables that it assigns.
      outputs: The vars of the tensors that it returns.
      tensors: Returned tensors that are constants: by var.
    """

    segments: list[Segment]
    effects: list[Eqn]
    types: Sequence[TensorType]
    constants: Mapping[int, Any]
    inputs: tuple[int, ...]
    handles: Mapping[int, Handle]
    captures: Mapping[int, Tensor]
    updates: tuple[Update, ...]
    outputs: tuple[int, ...]
    tensors: Mapping[int, Tensor]


def path_of(recorded: Trace, inputs: Sequence[Any], outputs: Sequence[Any], reads: Sequence[Read]) -> Path:
    """Return a recorded run as a path.

    Args:
      recorded: Its trace.
      inputs: What is passed in: tensors that no op has made, and variables.
      outputs: What is returned: tensors, and variables.
      reads: The values that Python read.

    Raises:
      NotCompilableError: If it cannot be repeated.
    """
    trace = without_calls(recorded)
    check_updates(trace)
    if trace is not recorded:  # conditions inside functions are values that Python has read
        reads = [*reads, *reads_of(trace)]
    return _Builder(trace, inputs, outputs, reads, by_time=trace is recorded).path()


def reads_of(trace: Trace) -> list[Read]:
    """Return the values that a trace says Python has read."""
    found, values = [], Values(trace)
    for read in trace.facts.host_reads:
        var = trace.tensors.get(read.identity)
        if var is not None:
            found.append(Read(read.time, values(var), str(trace.program.frames[read.frame]), var))
    return found


class _Builder:
    def __init__(
        self, trace: Trace, inputs: Sequence[Any], outputs: Sequence[Any], reads: Sequence[Read], by_time: bool
    ) -> None:
        self._trace, self._reads, self._by_time = trace, reads, by_time
        given = [self._leaf(part) for part in inputs]
        self._returned = [self._var_of(part) for part in outputs]
        self._pure: Pure = purify(trace, given)
        self._inputs, self._outputs = tuple(map(self._var, given)), tuple(map(self._var, self._returned))
        self._handles: dict[int, Handle] = {}
        self._updates: list[Update] = []
        for history in trace.facts.histories.values():
            first, last = (self._var(history.versions[end]) for end in (0, -1))
            if first not in self._inputs:
                self._handles[first] = history.handle
                self._updates += [Update(history.handle, first, last)] if last != first else []

    def _var(self, var: int) -> int:
        return self._pure.var(var, self._trace.program.types[var])

    def _var_of(self, part: Any) -> int:
        """Return the var of a tensor, or of the last value of a variable."""
        if not is_variable(part):
            return self._trace.var_of(part)
        history = self._trace.history(part.handle)
        if history is None:
            raise NotRecordedError(describe(part), "it was not used in what was recorded", "Use it inside the block.")
        return history.current

    def _leaf(self, part: Any) -> int:
        history = self._trace.history(part.handle) if is_variable(part) else None
        found = self._trace.tensors.find(part) if history is None else history.versions[0]
        if found is None:
            raise NotRecordedError(describe(part), "it was not used in what was recorded", "Use it inside the block.")
        if self._trace.program.producers[found] != LEAF:
            raise TapeUseError(
                f"{describe(part)} was computed on this tape, so it cannot be passed in. "
                "Name as inputs what the tape started from."
            )
        return found

    def path(self) -> Path:
        """Return the path."""
        pure = self._pure
        captures, constants = self._leaves()
        find = self._trace.tensors.find
        read = [(one, find(one.tensor) if one.var is None else one.var) for one in self._reads]
        reads = [(one, self._var(var)) for one, var in read if var is not None]
        wanted = [*self._outputs, *(update.last for update in self._updates), *(var for _, var in reads)]
        computation = Computation(
            tuple(pure.types),
            tuple(pure.producers),
            tuple(pure.eqns),
            (),
            (),
            tuple(constants.items()),
            (),
            (),
            tuple((var,) for var in wanted),
        )
        simplifier = Simplifier(computation, {}, checks_shapes=True)
        simple = simplifier.whole()
        found = [row[0] for row in simple.results]
        count, changed = len(self._outputs), len(self._updates)
        updates = [
            one._replace(last=var) for one, var in zip(self._updates, found[count : count + changed], strict=True)
        ]
        seen = zip(reads, found[count + changed :], strict=True)
        points: list[tuple[int, Check, Tensor | None]] = [
            (self._after(one, var), Check(var, False, one.place), one.tensor)
            for (one, _), var in seen
            if var not in simple.constants and var not in captures
        ]
        for var in {simplifier.same_as(var): None for var in simplifier.unsure}:
            index = pure.producers[var]
            place = str(self._trace.program.frame_of(self._trace.program.eqns[pure.origins[index]]))
            points.append((index + 1, Check(var, True, place), None))
        return Path(
            self._split(simple.eqns, points, constants),
            [eqn for eqn in simple.eqns if not eqn.outputs],
            simplifier.types(),
            simple.constants,
            self._inputs,
            self._handles,
            captures,
            tuple(update for update in updates if update.last != update.first),
            tuple(found[:count]),
            self._constant_outputs(found[:count], simple.constants.keys() | captures.keys()),
        )

    def _constant_outputs(self, found: Sequence[int], known: Container[int]) -> dict[int, Tensor]:
        """Return the values of outputs that are the same each time, by var."""
        values = Values(self._trace)
        return {var: values(returned) for returned, var in zip(self._returned, found, strict=True) if var in known}

    def _leaves(self) -> tuple[dict[int, Tensor], dict[int, bytes]]:
        """Return the leaves that are neither inputs nor variables: those passed in each time, and constants."""
        pure, values = self._pure, Values(self._trace)
        captures: dict[int, Tensor] = {}
        constants = dict(pure.constants)
        for var, number in list(pure.number.items()):
            if pure.producers[number] >= 0 or number in self._inputs or number in self._handles:
                continue
            value = values(var)
            if pure.types[number].dtype in (RESOURCE, _VARIANT) or bytes_of(pure.types[number]) > LARGEST:
                captures[number] = value
            else:
                constants[number] = value_bytes(value)
        return captures, constants

    def _after(self, read: Read, var: int) -> int:
        """Return the number of equations that ran before a read; at least those that its value needs."""
        if not self._by_time:  # inlining functions has changed the times
            return self._pure.producers[var] + 1
        return bisect_left(self._pure.origins, bisect_left(self._trace.facts.times, read.time))

    def _split(
        self, eqns: Sequence[Eqn], points: list[tuple[int, Check, Tensor | None]], constants: Mapping[int, bytes]
    ) -> list[Segment]:
        pure = self._pure
        ends: list[tuple[int, tuple[Check, ...], tuple[Hashable, ...]]] = []
        done: set[tuple[int, bool]] = set()
        # One segment for each check: others may follow at once on one path, and after more ops on another.
        for point, check, tensor in sorted(points, key=lambda one: (one[0], not one[1].of_shape)):
            if (check.var, check.of_shape) not in done:
                done.add((check.var, check.of_shape))
                value = pure.types[check.var].shape if tensor is None else check.value(tensor)
                ends.append((point, (check,), (value,)))
        found, begin = [], 0
        for end, checks, expected in [*ends, (len(pure.eqns), (), ())]:
            own = [eqn for eqn in eqns if eqn.outputs and begin <= pure.producers[eqn.outputs[0]] < end]
            raw = tuple(pure.eqns[begin:end])
            used = {var for eqn in raw for var in eqn.inputs}
            key = raw, tuple((var, constants[var]) for var in sorted(used) if var in constants)
            found.append(Segment(own, key, checks, expected))
            begin = end
        return found
