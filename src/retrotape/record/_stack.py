"""The recorders of one thread: receives events from the hooks and passes them on."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Any

from retrotape._types import Place, Tensor
from retrotape.ir import FOREVER, UNCOUNTED, LayerCall
from retrotape.record._event import WATCHED
from retrotape.record._expected import ExpectedPlaces
from retrotape.record._frames import here, in_moments, reader_place
from retrotape.record._functions import function_traits, variables_in
from retrotape.record._recorder import Recorder
from retrotape.record._trace import Trace
from retrotape.record._traced_layers import trace_layer
from retrotape.record._traits import Kind, traits
from retrotape.tf import core, hooks, tangents
from retrotape.tf.core import identity_of, size_of, tf
from retrotape.tf.hook_table import lock
from retrotape.tf.scopes import setting

# Events wait until a query, or until recording them would free enough memory. Recording them in batches, with warm
# caches, is four times as fast as one by one.
BATCH = 64
ELEMENTS = 250_000  # in the outputs of a batch: beyond this it is recorded at once
WAITING = 4096  # most events that may wait
_times = count()  # process-wide


class Stack(ExpectedPlaces):
    """Receives every op that runs on a thread and passes it to the active recorders."""

    def __init__(self) -> None:
        super().__init__()
        self.place: Place = None  # overrides the place of ops that are rerun
        self.implicit_reads: Sequence[tuple[int, Tensor]] = ()
        self.events: list[Any] = []  # plain tuples with the fields of `Event`, which are cheaper
        self._batch = self._max_batch = BATCH
        self._elements = 0  # in the outputs of `events`, counted if values are dropped
        self._custom: list[bool] = []
        self._recompute = 0
        self._returned: deque[Sequence[Tensor]] = deque()  # by `tf.py_function`s whose op is not reported yet
        self._inside_python = 0
        self._layers: list[LayerCall] = []  # running calls
        self._early: set[int] = set()  # first outputs of ops that were recorded before their callback

    def is_current(self) -> bool:
        """Return whether this belongs to the current thread."""
        return not self._ended and current_stack() is self

    def _listener(self) -> Stack:
        return self

    def _reset(self) -> None:
        super()._reset()
        self.events, self._custom, self._layers, self._early = [], [], [], set()
        self._recompute = self._inside_python = 0
        self.implicit_reads = ()
        self._returned.clear()
        self._activate([])

    def next_time(self) -> int:
        """Return a time after everything that has run."""
        return next(_times)

    def in_replica(self) -> Stack:
        """Create the stack of this thread, a replica's, which records on the same traces in execution order."""
        thread.stack = stack = Stack()
        stack.inherit(self)
        stack._batch = stack._max_batch = 1
        stack._layers = list(self._layers)
        return stack

    # ------------------------------------------------------------------ recorders

    def add_moments(self, tensor: Tensor) -> None:
        """Record that `tf.nn.moments`, in a function that is rerun, stopped the gradient of a tensor."""
        for recorder in self.active:
            recorder.add_moments(tensor)

    def open_besides(self, trace: Trace) -> list[Trace]:
        """Return the other open traces, paused or not, with all pending events recorded."""
        self.dispatch()
        found = {id(one): one for one in (*self._open, *self.active) if one is not trace}
        others: list[Trace] = list(found.values())
        for other in others:
            other.flush()
        return others

    # ------------------------------------------------------------------ events

    def on_op(self, op: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> Any:
        """Receive an eager op. In a graph TensorFlow hands on what is returned, to the next callback too."""
        if graph is not None or not self.active:
            if not self._open:
                hooks.detach(self)
            return None if graph is None else list(outputs)  # which is what op functions in Python return
        if self._early and outputs and identity_of(outputs[0]) in self._early:
            self._early.discard(identity_of(outputs[0]))
            return None
        if op == "StopGradient" and in_moments():
            for recorder in self.active:
                recorder.add_moments(outputs[0])
        # Copied: `outputs` is the list that the caller gets, and TensorArray writes None into it.
        place, recompute = self.place or self._place(), self._recompute
        if self._drops_values and not recompute and core.stock_tape_listens():
            recompute = WATCHED
        if self.implicit_reads:
            reads, self.implicit_reads = self.implicit_reads, ()
            for position, handle in reads:
                value = inputs[position]
                read = "ReadVariableOp", (handle,), ("dtype", core.eager_dtype(value)), (value,)
                self.events.append((*read, place, recompute, next(_times)))
        event = op, inputs, attrs, tuple(outputs), place, recompute, next(_times)
        if (self._calls or self._returned) and self._inside_call(*event):
            return None
        self.events.append(event)  # atomic: if interrupted before, the caller has not got the outputs
        if self._drops_values:  # and is to hold little; otherwise, counting takes more time than it is worth
            self._elements += sum(map(size_of, event[3]))
        if (len(self.events) >= self._batch or self._elements > ELEMENTS) and not self._calls:
            self.dispatch()
        return None

    def records_only(self, trace: Trace) -> bool:
        """Return whether ops would be recorded on `trace` alone, each as an equation of its own."""
        if len(self.active) != 1 or self.active[0] is not trace or self.active[0].observer is not None:
            return False
        inside = self._calls or self._returned or self._inside_python or self._custom or self._recompute
        return not inside and self._parent is None and self.place is None and not core.stock_tape_listens()

    def on_tangents(self, op: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        """Record an op that is not recorded yet: the computation of its tangents reads its outputs."""
        self.flush()
        first = identity_of(outputs[0])
        if self.active and any(recorder.tensors.get(first) is None for recorder in self.active):
            self.on_op(op, tuple(inputs), attrs, outputs)
            self._early.add(first)
        self.hold(outputs)

    def passes_tangents(self) -> bool:
        """Return whether the running `stop_gradient` is not meant for higher-order derivatives."""
        return bool(self.active) and in_moments()

    def hold(self, tensors: Sequence[Tensor]) -> None:
        """Keep tensors that have tangents: a recomputed value would have none."""
        self.flush()
        for recorder in self.active:
            for tensor in tensors:
                recorder.values[recorder.var_of(tensor)] = tensor

    def dispatch(self) -> None:
        """Pass the ops that ran since the last dispatch to the active recorders, which record them later."""
        if not self.events:
            return
        self._elements = 0
        try:
            with lock:
                active = self.active
                events, self.events = self.events, []
                for recorder in active:
                    recorder.waiting.extend(events)
        except BaseException:
            for recorder in self.active:
                recorder.damaged = True
            raise
        size = sum([size_of(tensor) for event in events for tensor in event[3]])
        self._batch = max(1, min(self._max_batch, ELEMENTS * len(events) // max(1, size)))
        for recorder in active:
            if (size > ELEMENTS or len(recorder.waiting) > WAITING) and self.is_current():
                recorder.flush()

    def flush(self) -> None:
        """Record all pending events."""
        self.dispatch()
        for recorder in self.active:
            recorder.flush()
            if recorder.damaged:  # nothing more can be recorded there
                self._activate([other for other in self.active if other is not recorder])

    def _inside_call(
        self, op: Any, inputs: Any, _: Any, outputs: tuple[Tensor, ...], place: Any, recompute: int, time: int
    ) -> bool:
        """Record an op that ends a function call or a `tf.py_function`; return whether it was one."""
        if op == "EagerPyFunc" and self._returned:
            self.flush()
            for tensor, made in zip(outputs, self._returned.popleft(), strict=True):
                for recorder in self.active:
                    recorder.tensors.alias(identity_of(tensor), recorder.var_of(made))
            return True
        if self._returned and not self._inside_python:
            self._returned.clear()
        elif self._calls and traits(op).kind is Kind.CALL:
            self.flush()
            call = self._calls[-1]
            inputs = tuple(call.arguments + call.captures) if call.function in tangents.made else inputs
            writes = function_traits(call.function).writes
            for recorder in self.active:
                recorder.append_call(op, inputs, outputs, recorder.frames.number(place), writes, call, time)
            self._known.clear()
            self.on_updated(self._stamp)
            return True
        return False

    def on_layer(self, name: str, run: Callable[[], Any]) -> Any:
        """Run a Keras layer and record when it began and ended: the ops in between belong to it."""
        if not self._open or not tf.executing_eagerly():
            return trace_layer(name, run) if self._open else run()
        path = f"{self._layers[-1].path}/{name}" if self._layers else name
        call = LayerCall(path, next(_times), FOREVER, UNCOUNTED)
        for recorder in self.active:
            recorder.layer_calls[call.begin] = call
        try:
            with setting(self, _layers=[*self._layers, call]):
                result = run()
            call = call._replace(returned=_identity_of(result))
        finally:
            call = call._replace(end=next(_times))
            for recorder in (*self._open, *self.active):
                if call.begin in recorder.layer_calls:
                    recorder.layer_calls[call.begin] = call
        return result

    def add_layer_calls(self, recorder: Recorder) -> None:
        """Add the running layer calls to a recorder that starts."""
        recorder.layer_calls.update((scope.begin, scope) for scope in self._layers)

    def on_backward(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """Record a custom gradient, or the backward function of a call."""
        self.flush()
        if self._calls and name.startswith("__forward_"):
            for recorder in self.active:
                recorder.attach_backward(outputs, len(inputs), backward)
        elif self._single and not core.accumulating():
            pass  # no recorder gets it, see `for_backward`
        elif not (self._custom and self._custom[-1] and name == "inner"):
            self._read_unheld(variable.handle for variable in variables_in(backward))
            self.flush()
            place, time = self.place or here(2), next(_times)
            for recorder, function in self.for_custom(backward):
                recorder.append_backward(name, outputs, inputs, function, place, time)
            if core.accumulating():
                self.hold(outputs)
        # else `tf.recompute_grad`: its ops are recorded as recomputed instead, which gives correct higher orders too

    def emit(self, name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
        """Record `backward` as the backward function from `outputs` to `inputs`, whatever ops produced them."""
        self.flush()
        place, time = self.place or here(2), next(_times)
        for recorder in self.for_backward():
            recorder.append_backward(name, outputs, inputs, backward, place, time)

    def on_custom_gradient(self, recomputes: bool, run: Callable[[], Any]) -> Any:
        """Run the body of a custom gradient; under `tf.recompute_grad`, keep nothing that can be recomputed."""
        with setting(self, _custom=[*self._custom, recomputes], _recompute=self._recompute + recomputes):
            return run()

    def on_py_function(self, outer: Sequence[Tensor], inner: Sequence[Tensor], run: Callable[[], Any]) -> Any:
        """Run the body of a `tf.py_function`, whose tensors are copies of its inputs."""
        if not self.active:
            return run()
        for recorder in self.active:
            if recorder.observer is not None:
                recorder.observer.on_gap()
        self.flush()
        if not self._inside_python:
            self._returned.clear()  # left by a call that failed after its body ran
        for recorder in self.active:
            for tensor, copied in zip(tf.nest.flatten(outer), tf.nest.flatten(inner), strict=True):
                if isinstance(tensor, core.EagerTensor):
                    recorder.tensors.alias(identity_of(copied), recorder.var_of(tensor))
        with setting(self, _inside_python=self._inside_python + 1):
            result = run()
        self._returned.append([] if result is None else tf.nest.flatten(result))
        return result

    def on_host_read(self, tensor: Tensor, method: str, only_shown: bool = False) -> None:
        """Record that Python reads a value: what runs later may depend on it."""
        if self.active:
            for recorder in self.active:
                if recorder.observer is not None:
                    recorder.observer.on_host_read(tensor, only_shown)
            place = None if only_shown else reader_place(3)
            if place is not None:
                self._add_host_read(tensor, place, method)

    def add_choice(self, tensor: Tensor) -> None:
        """Record that a value decided the control flow of a function that is run op by op."""
        self._add_host_read(tensor, self.place, "a condition in a tf.function")

    def _add_host_read(self, tensor: Tensor, place: Place, method: str) -> None:
        time = next(_times)
        for recorder in self.active:
            recorder.add_host_read(identity_of(tensor), time, place, method, core.next_id())


def _identity_of(result: Any) -> int:
    """Return the identity of the tensor that a layer returned; see `LayerCall.returned`."""
    if type(result) is core.EagerTensor:
        return identity_of(result)
    flat = tf.nest.flatten(result)
    return UNCOUNTED if any(type(item).__name__ == "KerasTensor" for item in flat) else 0


class _ThreadEnd:
    """Dropped when its thread ends; closes what is open there."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self._stack.end()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.stack = Stack()
        self.end = _ThreadEnd(self.stack)


thread = _Thread()


def next_time() -> int:
    """Return a time after everything that has run."""
    return next(_times)


def next_times(number: int) -> list[int]:
    """Return so many times, each after everything that has run."""
    return list(islice(_times, number))


def current_stack() -> Stack:
    """Return the stack of this thread."""
    return thread.stack
