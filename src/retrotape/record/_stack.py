"""The tapes that record on one thread, and what each op means for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import tensorflow as tf

from retrotape import _tf
from retrotape.record._attrs import canonical
from retrotape.record._recording import Recording
from retrotape.record._traits import Kind, traits
from retrotape.rules import FORWARD

Tensor = Any
_RESOURCE = 20


class Stack:
    """Hears of everything that runs on a thread and tells the recordings that are open there."""

    def __init__(self) -> None:
        self._open: list[Recording] = []
        self._active: list[Recording] = []
        self._calls: list[_tf.FunctionCall] = []
        self._custom: list[bool] = []
        self._frugal = 0
        self._returned: list[Sequence[Tensor]] = []

    # ------------------------------------------------------------------ which recordings are open

    def push(self, recording: Recording) -> None:
        """Let `recording` take part until `pop`."""
        self._open.append(recording)
        self._active.append(recording)
        if len(self._open) == 1:
            _tf.attach(self)

    def pop(self, recording: Recording) -> None:
        """End what `push` began; blocks may be left in any order."""
        self._open.remove(recording)
        if recording in self._active:
            self._active.remove(recording)
        if not self._open:
            _tf.detach()

    def hears(self, recording: Recording) -> bool:
        """Say whether ops are being written to `recording` now."""
        return recording in self._active

    def hearing(self) -> bool:
        """Say whether anything is being written down now."""
        return bool(self._active)

    def emit(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """Write down, in place of the ops that made `outputs`, that they go back to `inputs` by `backward`."""
        for recording in self._active:
            recording.append_backward(name, outputs, inputs, backward, recording.frames.here())

    @contextmanager
    def without(self, *recordings: Recording) -> Iterator[None]:
        """Run ops that `recordings` do not write down."""
        with self._heard_by([r for r in self._active if all(r is not other for other in recordings)]):
            yield

    @contextmanager
    def only(self, recording: Recording) -> Iterator[None]:
        """Run ops that `recording` alone writes down, whether it is open or not."""
        if not self._open:
            self.push(recording)
            try:
                yield
            finally:
                self.pop(recording)
        else:
            with self._heard_by([recording]):
                yield

    @contextmanager
    def _heard_by(self, recordings: list[Recording]) -> Iterator[None]:
        before, self._active = self._active, recordings
        try:
            yield
        finally:
            self._active = before

    # ------------------------------------------------------------------ what runs

    def on_op(self, op: str, inputs: tuple[Tensor, ...], attrs: Any, outputs: tuple[Tensor, ...]) -> None:
        """Write down an eager op."""
        active = self._active
        if not active:
            return
        features = traits(op)
        kind = features.kind
        if kind is Kind.PLAIN:
            if op == "EagerPyFunc" and self._returned:
                self._on_py_result(outputs)
                return
            plain = canonical(op, attrs)
            for recording in active:
                keep = "leaves" if self._frugal else recording.keep
                recording.append(op, features, inputs, plain, outputs, recording.frames.here(), keep)
        elif kind is Kind.CALL:
            self._on_function(op, inputs, outputs)
        else:
            plain = canonical(op, attrs)
            for recording in active:
                recording.append_access(op, kind, inputs, plain, outputs, recording.frames.here(), op in FORWARD)

    def on_variable(self, variable: Any) -> None:
        """Note which variable is read."""
        for recording in self._active:
            recording.note_variable(variable)

    def on_backward(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """Write down a custom gradient, or how a function goes back."""
        call = self._calls[-1] if self._calls and name.startswith("__forward_") else None
        if call is None and self._custom and self._custom[-1] and name == "inner":
            return  # `tf.recompute_grad`: its ops are written down, which does what it wants to do
        for recording in self._active:
            if call is not None:
                recording.attach_backward(len(recording.builder.eqns) - 1, outputs, inputs, backward, call)
        if call is None:
            self.emit(name, outputs, inputs, backward)

    def on_custom_gradient(self, recomputes: bool, run: Callable[[], Any]) -> Any:
        """Run the body of a custom gradient; one that recomputes keeps nothing that can be computed again."""
        self._custom.append(recomputes)
        self._frugal += recomputes
        try:
            return run()
        finally:
            self._frugal -= recomputes
            self._custom.pop()

    def on_py_function(self, outer: Sequence[Tensor], inner: Sequence[Tensor], run: Callable[[], Any]) -> Any:
        """Run the body of a `tf.py_function`, whose tensors are copies of those outside."""
        for recording in self._active:
            for tensor, copied in zip(tf.nest.flatten(outer), tf.nest.flatten(inner), strict=True):
                if isinstance(tensor, _tf.EagerTensor):
                    recording.alias(copied, recording.operand(tensor))
        result = run()
        self._returned.append([] if result is None else tf.nest.flatten(result))
        return result

    def _on_py_result(self, outputs: tuple[Tensor, ...]) -> None:
        for tensor, inner in zip(outputs, self._returned.pop(), strict=True):
            for recording in self._active:
                recording.alias(tensor, recording.operand(inner))

    # ------------------------------------------------------------------ functions

    def on_call(self, call: _tf.FunctionCall) -> Any:
        """Run a `tf.function` so that it can be asked about."""
        if not self._active:
            return call.run()
        inputs = call.arguments + call.captures
        self._read_before(call, inputs)
        self._calls.append(call)
        try:
            # With random draws inside, only TensorFlow's own record of the call can tell what was drawn, and
            # only a persistent tape makes it record enough for every order.
            with _tf.watching(inputs, persistent=not function_traits(call.function).deterministic):
                return call.run()
        finally:
            self._calls.pop()

    def _read_before(self, call: _tf.FunctionCall, inputs: list[Tensor]) -> None:
        """Record the values of the variables that a function uses: afterwards they may have changed."""
        for variable in call.function._func_graph.variables:
            handle = variable.handle
            if not all(recording.holds(handle) for recording in self._active) and variable.is_initialized():
                tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
                self.on_variable(variable)

    def _on_function(self, op: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        writes: tuple[int, ...] = ()
        if self._calls:
            writes = function_traits(self._calls[-1].function).writes
        for recording in self._active:
            recording.append_call(op, inputs, outputs, recording.frames.here(), writes)


# Operations that have state but compute the same again from the same variables.
_REPEATABLE = frozenset(("NoOp", "Assert", "PrintV2", "StringFormat", "Placeholder", "_Arg", "_Retval", "VarHandleOp"))


def _repeatable(op: str) -> bool:
    definition = _tf.op_def(op)
    if definition is None or not definition.is_stateful or op in _REPEATABLE:
        return True
    if op in ("PartitionedCall", "StatefulPartitionedCall", "While", "If", "Case"):
        return True
    return any(arg.type == _RESOURCE for arg in definition.input_arg) and not op.startswith("Iterator")


class FunctionTraits(NamedTuple):
    """What is known of a concrete function before it runs."""

    deterministic: bool  # the same again for the same arguments and variables
    writes: tuple[int, ...]  # inputs that are variables which it may assign


_function_traits: WeakKeyDictionary[Any, FunctionTraits] = WeakKeyDictionary()


def function_traits(function: Any) -> FunctionTraits:
    """Return the traits of a concrete function."""
    found = _function_traits.get(function)
    if found is None:
        deterministic = all(_repeatable(op) for op in set(_tf.operations_within(function)))
        found = _function_traits[function] = FunctionTraits(deterministic, _tf.written_inputs(function))
    return found


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack = Stack()


_thread = _Thread()


def current_stack() -> Stack:
    """Return the stack of this thread."""
    return _thread.stack
