"""Inside a `tf.function` the graph is the log: a trace is read off its operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from retrotape._types import Tensor
from retrotape.ir import Attr, VariableHistory
from retrotape.record._attributes import canonical
from retrotape.record._frames import in_moments, is_moments
from retrotape.record._recorder import Event, Recorder
from retrotape.record._session import EagerSession
from retrotape.record._traits import RESOURCE, Kind, traits
from retrotape.tf import core, functions, hooks, keras_api
from retrotape.tf.core import identity_of
from retrotape.tf.nests import unwrap
from retrotape.tf.replicas import handle_of, handles_of
from retrotape.tf.scopes import Scope, again


def _dtype_of(tensor: Tensor) -> int:
    return tensor.dtype.base_dtype.as_datatype_enum


class GraphSession:
    """Which stretches of a graph's operations belong to a tape, and the trace read off them."""

    def __init__(self, graph: Any, outer: EagerSession | None = None) -> None:
        self.graph = graph
        self.outer = outer  # what the same tape recorded before, in eager code
        self.trace = Recorder("all", _dtype_of)
        self.operations: list[Any] = []
        self._variables: dict[int, Any] = {}  # as they were first read
        self._owners: dict[int, Any] = {}  # Keras variables
        self.trace.owners = self._owners
        self._watched: set[int] = set()  # by identity of the handle
        self.token = object()  # what changes when everything is forgotten
        self.is_elsewhere = False  # a graph is built on one thread
        self._paused = 0
        self._stretches: list[tuple[int, int]] = []
        self._since: int | None = None
        self._calls: dict[Any, tuple[Sequence[Tensor], Sequence[Tensor], Callable]] = {}
        self._merges: list[tuple[int, int]] = []  # operations that other replicas added, or all together

    @property
    def is_open(self) -> bool:
        """Whether the block is open."""
        return self._since is not None

    def is_recording(self) -> bool:
        """Return whether operations are being added to the tape now: their number is all it takes, so always."""
        return True

    def remembers(self) -> tuple[bool, bool]:
        """Return that results are remembered, and that they are recorded as they are made."""
        return True, True

    def is_idle(self) -> bool:
        """Return whether nothing is added to the tape."""
        return self._since is None

    def start(self) -> None:
        """Begin a stretch. What is interrupted here, `close` takes back."""
        self._since = self._now()
        hooks.attach_graph(self)

    def stop(self) -> None:
        """End the stretch."""
        again(self.close)

    def close(self) -> None:
        """End the stretch; once more where that was interrupted."""
        if self._since is not None:
            hooks.detach_graph(self)
            self._stretches.append((self._since, self._now()))  # twice is no harm
            self._since = None

    def on_variable(self, variable: Any) -> None:
        """Note that a variable is read."""
        if id(variable) not in self._variables:
            self._variables[id(variable)] = variable
            if self.trace.owner_of(variable) is None:  # by a function that was traced before
                self._owners.update((id(unwrap(owner)), owner) for owner in keras_api.variables_around())

    def on_keras_variable(self, variable: Any) -> None:
        """Note which Keras variable a variable is inside of."""
        self._owners[id(unwrap(variable))] = variable

    def passes_tangents(self) -> bool:
        """Return whether the `stop_gradient` that is running is not meant for derivatives of derivatives."""
        return self.is_open and in_moments()

    def on_call(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """Note TensorFlow's own way back through a call, which knows the side outputs that a stock tape asked for."""
        self._calls[outputs[0].op] = (outputs, inputs, backward)

    @contextmanager
    def merging(self) -> Iterator[None]:
        """Let what is added meanwhile be that of other replicas: no path of this one passes it."""
        begin = self._now()
        try:
            yield
        finally:
            self._merges.append((begin, self._now()))

    def paused(self) -> AbstractContextManager[None]:
        """Leave out what is added meanwhile."""
        return _Paused(self)

    def extended(self) -> AbstractContextManager[None]:
        """Let what is added meanwhile belong to the tape, so that it can be differentiated again."""
        return nullcontext() if self.is_open or self._paused else _Started(self)

    @contextmanager
    def forked(self) -> Iterator[GraphSession]:
        """Let what is added meanwhile belong to the tape: in a graph that costs nothing."""
        with self.extended():
            yield self

    def clear(self) -> None:
        """Forget everything; an open stretch begins anew."""
        self._stretches.clear()
        self._variables.clear()
        self._owners.clear()
        self._watched.clear()
        self.token = object()
        if self._since is not None:
            self._since = self._now()

    def _now(self) -> int:
        return len(self.graph.get_operations())

    def flush(self) -> None:
        """Read the trace off the graph.

        Anew for every question: TensorFlow adds inputs and outputs to loops that it differentiates.
        """
        operations = self.graph.get_operations()
        stretches = [*self._stretches, *([(self._since, len(operations))] if self._since is not None else [])]
        inside = [operation for start, stop in stretches for operation in operations[start:stop]]
        self.trace = Recorder("all", _dtype_of)
        self.trace.owners = self._owners
        self.operations = _in_order(inside)
        others = {operation for start, stop in self._merges for operation in operations[start:stop]}
        self.trace.facts.foreign.update(index for index, one in enumerate(self.operations) if one in others)
        for operation in self.operations:
            _append(self.trace, operation)
            if operation.type == "StopGradient" and any(is_moments(e.filename, e.name) for e in operation.traceback):
                self.trace.add_moments(operation.outputs[0])
            if operation in self._calls:
                outputs, inputs, backward = self._calls[operation]
                self.trace.attach_backward(outputs, len(inputs), backward)

    def var_of(self, tensor: Tensor) -> int:
        """Let a tensor be known for this question although no operation has used it, and return its var."""
        return self.trace.var_of(_inside(self.graph, tensor))

    def watch(self, variable: Any) -> None:
        """Let a variable be a target although no operation may use it."""
        self._watched.add(identity_of(_inside(self.graph, handle_of(variable))))

    def watches(self, variable: Any) -> bool:
        """Return whether `watch` was told of a variable."""
        return identity_of(_inside(self.graph, handle_of(variable))) in self._watched

    def stand_in(self, variable: Any) -> int:
        """Return a var, for this question, for a variable that no operation has used."""
        return self.trace.stand_in(_inside(self.graph, handle_of(variable)))

    def variables(self) -> list[Any]:
        """Return the variables that were read."""
        before = [] if self.outer is None else self.outer.variables()
        return list({id(variable): variable for variable in (*before, *self._variables.values())}.values())

    def trainable(self) -> list[Any]:
        """Return those of them that are trainable now; where Keras has them, its variables, and what it says."""
        return self.trace.trainable(self.variables())

    def find(self, tensor: Tensor) -> int | None:
        """Return the var of a tensor, also of one that the graph took from outside."""
        return self.trace.tensors.find(_inside(self.graph, tensor))

    def history(self, variable: Any) -> VariableHistory | None:
        """Return what is known of a variable; where it consists of one for each device, of the first that was used."""
        return next(iter(self.histories_of(variable)), None)

    def histories_of(self, variable: Any) -> list[VariableHistory]:
        """Return what is known of a variable on each device; of most variables there is one."""
        found = [
            self.trace.facts.histories.get(identity_of(_inside(self.graph, handle))) for handle in handles_of(variable)
        ]
        return [history for history in found if history is not None]

    def crossings(self) -> list[tuple[int, int]]:
        """Return the vars of tensors that the graph took from what was recorded in eager code, here and there."""
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
        """Say why a tensor has no var and what to do about it; None if it came into the graph from outside."""
        if _inside(self.graph, tensor).op.type == "Placeholder":
            return None
        return (
            "it was added to the graph before recording began, after it ended, or while it was paused",
            "Move the code that makes it into the `with` block.",
        )


class _Started(Scope):
    """Let operations belong to a tape."""

    def __init__(self, session: GraphSession) -> None:
        self._session = session

    def enter(self) -> None:
        self._session.start()

    def leave(self) -> None:
        self._session.close()


class _Paused(Scope):
    """Let operations not belong to a tape that is open."""

    def __init__(self, session: GraphSession) -> None:
        self._session, self._before = session, session._paused

    def enter(self) -> None:
        self._session.close()
        self._session._paused = self._before + 1

    def leave(self) -> None:
        self._session._paused = self._before
        if not self._session.is_open:
            self._session.start()


def _append(recorder: Recorder, operation: Any) -> None:
    op, inputs, outputs = operation.type, tuple(operation.inputs), tuple(operation.outputs)
    frame = recorder.frames.number(operation)
    if traits(op).kind in (Kind.READ, Kind.WRITE):
        recorder.append_access(op, inputs, _attrs_of(operation), outputs, frame)
    elif operation.type.endswith("PartitionedCall") or any(_dtype_of(tensor) == RESOURCE for tensor in inputs):
        recorder.append_call(op, inputs, outputs, frame, functions.written_by(operation))
    else:
        recorder.record([Event(op, inputs, (), outputs, operation, False, 0)])


def _attrs_of(operation: Any) -> tuple[Attr, ...]:
    definition = core.op_def(operation.type)
    assert definition is not None
    flat = [part for attr in definition.attr for part in (attr.name, operation.get_attr(attr.name))]
    return canonical(operation.type, tuple(flat))


def _in_order(operations: list[Any]) -> list[Any]:
    """Sort so that every operation follows those that it takes inputs from, else as they were."""
    pending = dict.fromkeys(operations)
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
    """Return what a tensor from outside is called inside `graph`."""
    if isinstance(tensor, core.EagerTensor) or tensor.graph is not graph:
        return graph.capture(tensor)
    return tensor
