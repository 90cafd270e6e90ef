"""Recording inside a `tf.function`: the trace is derived from the operations of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from retrotape._types import Tensor
from retrotape.ir import Attr, VariableHistory
from retrotape.record._attributes import canonical
from retrotape.record._event import Event
from retrotape.record._frames import in_moments, is_moments
from retrotape.record._recorder import Recorder
from retrotape.record._session import EagerSession
from retrotape.record._traits import RESOURCE, Kind, traits
from retrotape.tf import core, functions, hooks, keras_api
from retrotape.tf.core import identity_of
from retrotape.tf.nests import unwrap
from retrotape.tf.replicas import handle_of, handles_of
from retrotape.tf.scopes import Scope, again

# TensorFlow adds inputs and outputs to these when it differentiates them.
CHANGING = ("While", "If", "Case", "PartitionedCall")


def _dtype_of(tensor: Tensor) -> int:
    return tensor.dtype.base_dtype.as_datatype_enum


class GraphSession:
    """The ranges of a graph's operations that belong to a tape, and the trace derived from them."""

    def __init__(self, graph: Any, outer: EagerSession | None = None) -> None:
        self.graph = graph
        self.outer = outer  # what the same tape recorded in eager code before
        self.trace = Recorder("all", _dtype_of)
        self.operations: list[Any] = []
        self._variables: dict[int, Any] = {}  # in order of first read
        self._owners: dict[int, Any] = {}  # Keras variables
        self.trace.owners = self._owners
        self._watched: set[int] = set()  # by identity of the handle
        self.token = object()  # replaced by `clear`
        self.is_elsewhere = False  # a graph is built on one thread
        self._paused = 0
        self._ranges: list[tuple[int, int]] = []
        self._since: int | None = None
        self._calls: dict[Any, tuple[Sequence[Tensor], Sequence[Tensor], Callable]] = {}
        self._covered: int | None = (
            None  # how many operations of the graph the trace covers; None if it must be rebuilt
        )
        self._changing: dict[Any, tuple[int, int]] = {}  # operations that may change, with their sizes
        self._merges: list[tuple[int, int]] = []  # ranges of operations added by other replicas, or by all together

    @property
    def is_open(self) -> bool:
        """Whether the block is open."""
        return self._since is not None

    def is_recording(self) -> bool:
        """Return True: an operation belongs to the tape by its index, so recording costs nothing."""
        return True

    def remembers(self) -> tuple[bool, bool]:
        """Return whether results are remembered, and whether they are recorded as they are made: both always."""
        return True, True

    def is_idle(self) -> bool:
        """Return whether no range is open."""
        return self._since is None

    def start(self) -> None:
        """Begin a range. If this is interrupted, `close` undoes it."""
        self._since = self._now()
        hooks.attach_graph(self)

    def stop(self) -> None:
        """End the range."""
        again(self.close)

    def close(self) -> None:
        """End the range; can be called again if it was interrupted."""
        if self._since is not None:
            hooks.detach_graph(self)
            self._ranges.append((self._since, self._now()))  # a duplicate is harmless
            self._since = None

    def on_variable(self, variable: Any, by_itself: bool = False) -> None:
        """Record that a variable is read: by its own method, or else by a function that was traced before."""
        if id(variable) not in self._variables:
            self._variables[id(variable)] = variable
            if not by_itself and self.trace.owner_of(variable) is None:
                self._owners.update((id(unwrap(owner)), owner) for owner in keras_api.variables_around())

    def on_keras_variable(self, variable: Any) -> None:
        """Record the Keras variable that owns a `tf.Variable`."""
        self._owners[id(unwrap(variable))] = variable

    def passes_tangents(self) -> bool:
        """Return whether the running `stop_gradient` is not meant for higher-order derivatives."""
        return self.is_open and in_moments()

    def on_call(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """Record TensorFlow's own backward function of a call, which takes the intermediate outputs that it added."""
        self._calls[outputs[0].op] = (outputs, inputs, backward)

    @contextmanager
    def merging(self) -> Iterator[None]:
        """Mark operations added in the block as those of other replicas: no path of this replica uses them."""
        begin = self._now()
        try:
            yield
        finally:
            self._merges.append((begin, self._now()))

    def paused(self) -> AbstractContextManager[None]:
        """Exclude operations added in the block."""
        return _Paused(self)

    def extended(self) -> AbstractContextManager[None]:
        """Include operations added in the block, so that they can be differentiated."""
        return nullcontext() if self.is_open or self._paused else _Started(self)

    @contextmanager
    def forked(self) -> Iterator[GraphSession]:
        """Include operations added in the block: in a graph this needs no fork."""
        with self.extended():
            yield self

    def clear(self) -> None:
        """Forget everything; an open range restarts here."""
        self._ranges.clear()
        self._variables.clear()
        self._owners.clear()
        self._watched.clear()
        self.token, self._covered = object(), None
        if self._since is not None:
            self._since = self._now()

    def _now(self) -> int:
        return len(self.graph.get_operations())

    def flush(self) -> None:
        """Derive the trace from the graph: from its new operations, or from all if an old one has changed."""
        operations = self.graph.get_operations()
        if not self._is_current():
            self.trace = Recorder("all", _dtype_of)
            self.trace.owners = self._owners
            self.operations, self._changing, self._covered = [], {}, 0
        begin, self._covered = self._covered or 0, None  # until it is complete, which an exception may interrupt
        ranges = [*self._ranges, *([(self._since, len(operations))] if self._since is not None else [])]
        new = _in_order([one for start, stop in ranges for one in operations[max(start, begin) : stop]])
        others = {one for start, stop in self._merges for one in operations[max(start, begin) : stop]}
        count = len(self.operations)
        self.trace.facts.foreign.update(count + number for number, one in enumerate(new) if one in others)
        self.operations.extend(new)
        self._append(new)
        self._changing.update((one, _sizes(one)) for one in new if one.type.endswith(CHANGING))
        self._covered = len(operations)

    def _is_current(self) -> bool:
        """Return whether the trace lacks nothing but new operations."""
        if self._covered is None or len(self.trace.program.eqns) != len(self.operations):
            return False
        return all(_sizes(operation) == sizes for operation, sizes in self._changing.items())

    def _append(self, operations: Sequence[Any]) -> None:
        trace, calls, plain = self.trace, self._calls, list[Event]()
        for operation in operations:
            op, inputs, outputs = operation.type, tuple(operation.inputs), tuple(operation.outputs)
            if _is_plain(op, inputs):
                plain.append(Event(op, inputs, (), outputs, operation, False, 0))
                if op == "StopGradient" and any(is_moments(e.filename, e.name) for e in operation.traceback):
                    trace.add_moments(outputs[0])
                if operation not in calls:
                    continue
            trace.record(plain)
            plain.clear()
            if not _is_plain(op, inputs):
                _append_access(trace, operation, inputs, outputs)
            if operation in calls:
                results, given, backward = calls[operation]
                trace.attach_backward(results, len(given), backward)
        trace.record(plain)

    def var_of(self, tensor: Tensor) -> int:
        """Return the var of a tensor; one that no operation has used is added for this query."""
        self._covered = None
        return self.trace.var_of(_inside(self.graph, tensor))

    def watch(self, variable: Any) -> None:
        """Allow a variable as a target even if no operation uses it."""
        self._watched.add(identity_of(_inside(self.graph, handle_of(variable))))

    def watch_tensor(self, tensor: Any) -> None:
        """Allow a tensor as a target even if no operation uses it."""
        self.var_of(tensor)

    def watches(self, variable: Any) -> bool:
        """Return whether a variable was passed to `watch`."""
        return identity_of(_inside(self.graph, handle_of(variable))) in self._watched

    def stand_in(self, variable: Any) -> int:
        """Return a var for a variable that no operation has used, for this query."""
        self._covered = None
        return self.trace.stand_in(_inside(self.graph, handle_of(variable)))

    def variables(self) -> list[Any]:
        """Return the variables that were read."""
        before = [] if self.outer is None else self.outer.variables()
        return list({id(variable): variable for variable in (*before, *self._variables.values())}.values())

    def trainable(self) -> list[Any]:
        """Return those that are trainable now; for a variable owned by Keras, the Keras variable."""
        return self.trace.trainable(self.variables())

    def find(self, tensor: Tensor) -> int | None:
        """Return the var of a tensor, which may be one that the graph captured."""
        return self.trace.tensors.find(_inside(self.graph, tensor))

    def history(self, variable: Any) -> VariableHistory | None:
        """Return the history of a variable; if it has one per device, that of the first device that was used."""
        return next(iter(self.histories_of(variable)), None)

    def histories_of(self, variable: Any) -> list[VariableHistory]:
        """Return the histories of a variable, one per device; most variables have one."""
        found = [
            self.trace.facts.histories.get(identity_of(_inside(self.graph, handle))) for handle in handles_of(variable)
        ]
        return [history for history in found if history is not None]

    def source_histories(self, variable: Any) -> list[VariableHistory]:
        """Return the same, to look up versions."""
        return self.histories_of(variable)

    def crossings(self) -> list[tuple[int, int]]:
        """Return, for each captured tensor that was recorded in eager code, its var in the graph and in eager code."""
        if self.outer is None:
            return []
        self.outer.flush()
        pairs = [
            (self.trace.tensors.find(inner), self.outer.find(tensor))
            for tensor, inner in self.graph.captures
            if isinstance(tensor, core.EagerTensor) and tensor.dtype != core.tf.resource
        ]
        return [(here, there) for here, there in pairs if here is not None and there is not None]

    def why_absent(self, tensor: Tensor) -> tuple[str, str] | None:
        """Return why a tensor has no var and what to do about it; None if it is an input or a capture of the graph."""
        if _inside(self.graph, tensor).op.type == "Placeholder":
            return None
        return (
            "it was added to the graph before recording began, after it ended, or while it was paused",
            "Move the code that makes it into the `with` block.",
        )


class _Started(Scope):
    """Include operations in a tape."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def enter(self) -> None:
        self._session.start()

    def leave(self) -> None:
        self._session.close()


class _Paused(Scope):
    """Exclude operations from an open tape."""

    def __init__(self, session: GraphSession) -> None:
        self._session, self._before = session, session._paused

    def enter(self) -> None:
        self._session.close()
        self._session._paused = self._before + 1

    def leave(self) -> None:
        self._session._paused = self._before
        if not self._session.is_open:
            self._session.start()


def _is_plain(op: str, inputs: Sequence[Tensor]) -> bool:
    if traits(op).kind in (Kind.READ, Kind.WRITE) or op.endswith("PartitionedCall"):
        return False
    return not any(_dtype_of(tensor) == RESOURCE for tensor in inputs)


def _append_access(recorder: Recorder, operation: Any, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    """Append an operation that reads or writes variables, or may do so."""
    op, frame = operation.type, recorder.frames.number(operation)
    if traits(op).kind in (Kind.READ, Kind.WRITE):
        recorder.append_access(op, inputs, _attrs_of(operation), outputs, frame)
    else:
        recorder.append_call(op, inputs, outputs, frame, functions.written_by(operation))


def _sizes(operation: Any) -> tuple[int, int]:
    return len(operation.inputs), len(operation.outputs)


def _attrs_of(operation: Any) -> tuple[Attr, ...]:
    if operation.type == "ReadVariableOp":  # most accesses
        return canonical(operation.type, ("dtype", operation.outputs[0].dtype))
    definition = core.op_def(operation.type)
    assert definition is not None
    flat = [part for attr in definition.attr for part in (attr.name, operation.get_attr(attr.name))]
    return canonical(operation.type, tuple(flat))


def _in_order(operations: list[Any]) -> list[Any]:
    """Sort topologically, otherwise keeping the order, in which only operations that have changed do not fit."""
    pending = dict.fromkeys(operations)
    if not any(operation.type.endswith(CHANGING) for operation in pending):
        return list(pending)
    ordered: list[Any] = []
    for first in operations:
        path = [first]
        while path:
            operation = path[-1]
            waiting = next((t.op for t in operation.inputs if t.op in pending and t.op is not operation), None)
            if operation not in pending:
                path.pop()
            elif waiting is None:
                del pending[operation]
                ordered.append(operation)
                path.pop()
            else:
                path.append(waiting)
    return ordered


def _inside(graph: Any, tensor: Tensor) -> Tensor:
    """Return the tensor of `graph` that stands for `tensor`, capturing it if needed."""
    if isinstance(tensor, core.EagerTensor) or tensor.graph is not graph:
        return graph.capture(tensor)
    return tensor
