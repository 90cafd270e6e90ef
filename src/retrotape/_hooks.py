"""The hooks in TensorFlow, in place only while something records, and what they tell to whom."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from retrotape import _keras
from retrotape._hooks_ops import (
    Noted,
    execute_cancellable,
    fast_path,
    in_the_past,
    initialized,
    note_writes,
    original,
    run_op,
    thread,
    writes,
)
from retrotape._hooks_ops import live_value as live_value
from retrotape._hooks_ops import now as now
from retrotape._listener import Listener, Past
from retrotape._tf import (
    BaseVariable,
    EagerTensor,
    EagerTensorBase,
    StockTape,
    array_ops,
    concrete_function,
    context,
    custom_gradient,
    execute,
    forwardprop,
    is_recompute,
    is_trainable,
    ops,
    pass_tangents,
    python_tokens,
    pywrap_tfe,
    record,
    resource_variable_ops,
    script_ops,
    tf,
    written_inputs,
)
from retrotape._tf_gradients import own_gradients
from retrotape.errors import TapeUseError

Tensor = Any

_lock = threading.Lock()
_installed = 0


def _record_operation(
    op_type: Any,
    output_tensors: Any,
    input_tensors: Any,
    backward_function: Any,
    forward_function: Any = None,
) -> None:
    name = op_type if isinstance(op_type, str) else op_type.decode()
    if not output_tensors or name == "captured_value":
        pass
    elif type(output_tensors[0]) is EagerTensor:
        if thread.listener is not None:
            thread.listener.on_backward(name, output_tensors, input_tensors, backward_function)
    elif name.startswith("__forward_"):
        for log in thread.graph_logs:
            log.on_call(output_tensors, input_tensors, backward_function)
    original["record_operation"](op_type, output_tensors, input_tensors, backward_function, forward_function)


def _jvp(op: str, attrs: Any, inputs: Any, outputs: Any, tangents: Any, use_batch: bool = False) -> Any:
    # The fast path computes tangents before it runs callbacks, and what computes them is given the op's outputs.
    if thread.listener is not None and outputs and type(outputs[0]) is EagerTensor:
        thread.listener.on_tangents(op, inputs, attrs, outputs)
    found = forwardprop._jvp_dispatch(op, attrs, inputs, outputs, tangents, use_batch)
    recorded = thread.listener is not None or thread.graph_logs
    if op == "SoftmaxCrossEntropyWithLogits" and recorded and found[1] is not None and tangents[1] is not None:
        found = [found[0], found[1] - tangents[1]]  # TensorFlow forgets the labels in `softmax - labels`
    return found


def _stop_gradient(input: Any, name: Any = None) -> Any:
    result = original["stop_gradient"](input, name)
    if any(log is not None and log.passes_tangents() for log in (thread.listener, *thread.graph_logs)):
        pass_tangents(input, result)
    return result


def _variable_accessed(variable: Any) -> None:
    if not tf.executing_eagerly():
        for log in thread.graph_logs:
            log.on_variable(variable)
    elif thread.listener is not None:
        thread.listener.on_variable(variable)
    original["variable_accessed"](variable)


def _eager_mode_decorator(f: Any, args: Any, kwargs: Any) -> Any:
    run = original["_eager_mode_decorator"]
    listener = thread.listener
    if listener is None:
        return run(f, args, kwargs)
    recomputes = f.__module__ == custom_gradient.__name__ and f.__qualname__.startswith("recompute_grad.")
    return listener.on_custom_gradient(recomputes, lambda: run(f, args, kwargs))


def _call_flat(self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
    if not tf.executing_eagerly():
        return original["_call_flat"](self, tensor_inputs, captured_inputs)
    call = FunctionCall(self, list(tensor_inputs), list(captured_inputs))
    if thread.past is None:
        return _call(call)
    thread.past.on_write(call.written())
    call = FunctionCall(self, *([in_the_past(arg) for arg in part] for part in (call.arguments, call.captures)))
    with _python_in(self, thread.past):
        return _call(call)


def _call(call: FunctionCall) -> Any:
    if thread.listener is not None:
        return thread.listener.on_call(call)
    note_writes(call.written(only_initialized=True))
    return call.run()


def _eager_func_call(self: Any, device: Any, token: Any, args: Any) -> Any:
    pasts = _python_pasts.get(token if type(token) is bytes else token.encode())
    if thread.past is None and pasts:  # Python code in a function runs on whatever thread TensorFlow takes
        with variables_as(_only(tuple(pasts))):
            return _eager_func_call(self, device, token, args)
    run = original["__call__"]
    listener, outer = thread.listener, thread.py_inputs
    thread.py_inputs = None
    if listener is None or outer is None:
        return run(self, device, token, args)
    return listener.on_py_function(outer, args, lambda: run(self, device, token, args))


# Where a tensor is only shown. What is shown decides nothing.
_SHOWING = frozenset(("__format__", "__repr__", "__str__", "value_text", "numpy_text"))


def _numpy(self: Any) -> Any:
    if thread.listener is not None:
        how = sys._getframe(1).f_code.co_name
        if how not in _SHOWING:
            thread.listener.on_look(self, how)
    return original["_numpy"](self)


def _read_whole(item: Any) -> Any:
    """Return the value of a variable, also of a Keras one; anything else as it is."""
    inner = item if isinstance(item, (tf.Tensor, BaseVariable)) else getattr(item, "_value", item)
    return inner.read_value() if isinstance(inner, BaseVariable) else item


def _py_func_common(func: Any = None, inp: Any = None, *rest: Any, **kw: Any) -> Any:
    if thread.listener is not None and tf.executing_eagerly() and isinstance(inp, (list, tuple)):
        inp = [_read_whole(item) for item in inp]
        for item in inp:
            if isinstance(item, EagerTensor):
                thread.listener.on_look(item, "numpy_function")
    return original["py_func_common"](func, inp, *rest, **kw)


def _get_gradient_function(op: Any) -> Any:
    found = original["get_gradient_function"](op)
    if thread.keeps_recomputed and op.type == "IdentityN" and is_recompute(found):
        return lambda op, *grads: list(grads)
    return found


_HOOKS: tuple[tuple[Any, str, Callable], ...] = (
    (pywrap_tfe, "TFE_Py_FastPathExecute", fast_path),
    (execute, "quick_execute", run_op),
    (execute, "execute_with_callbacks", run_op),
    (execute, "execute", run_op),
    (execute, "execute_with_cancellation", execute_cancellable),
    (record, "record_operation", _record_operation),
    (resource_variable_ops, "variable_accessed", _variable_accessed),
    (array_ops, "stop_gradient", _stop_gradient),
    (custom_gradient, "_eager_mode_decorator", _eager_mode_decorator),
    (concrete_function.ConcreteFunction, "_call_flat", _call_flat),
    (script_ops.EagerFunc, "__call__", _eager_func_call),
    (EagerTensorBase, "_numpy", _numpy),
    (ops, "get_gradient_function", _get_gradient_function),
    (script_ops, "py_func_common", _py_func_common),
)


def add_hooks(*hooks: tuple[Any, str, Callable]) -> None:
    """Have more hooks in place while something records, from now on."""
    global _HOOKS
    _HOOKS += hooks


def _on_keras_variable(variable: Any) -> None:
    if thread.listener is not None:
        thread.listener.on_keras_variable(variable)
    for log in thread.graph_logs:
        log.on_keras_variable(variable)


def _on_layer(name: str, run: Callable[[], Any]) -> Any:
    listener = thread.listener
    return run() if listener is None else listener.on_layer(name, run)


def _install() -> None:
    global _installed
    with _lock:
        _installed += 1
        if _installed == 1:
            for owner, name, hook in _HOOKS:
                original[name] = getattr(owner, name)
                setattr(owner, name, hook)
            _keras.install(_on_keras_variable, _on_layer)
            pywrap_tfe.TFE_Py_RegisterJVPFunction(_jvp)


def _uninstall() -> None:
    global _installed
    with _lock:
        _installed -= 1
        if _installed == 0:
            for owner, name, _ in _HOOKS:
                setattr(owner, name, original[name])
            pywrap_tfe.TFE_Py_RegisterJVPFunction(forwardprop._jvp_dispatch)
            _keras.uninstall()
            writes.clear()
            # Somebody else's callbacks may have come or gone meanwhile; they need the slow path's switch.
            listening = bool(context.context().op_callbacks)
            execute.execute = execute.execute_with_callbacks if listening else execute.quick_execute


def attach(listener: Listener) -> None:
    """Let `listener` hear of everything that runs on this thread."""
    _install()
    thread.listener = listener
    local = context.context()._thread_local_data
    local.op_callbacks = list(local.op_callbacks)  # TensorFlow lets the threads of all replicas share one list
    context.context().add_op_callback(listener.on_op)


def detach(listener: Listener) -> None:
    """End what `attach` began."""
    context.context().remove_op_callback(listener.on_op)
    thread.listener = None
    _uninstall()


def attach_graph(log: Any) -> None:
    """Let `log` hear which variables are read in a graph, and how functions that are called there go back."""
    _install()
    thread.graph_logs = (*thread.graph_logs, log)


def detach_graph(log: Any) -> None:
    """End what `attach_graph` began."""
    thread.graph_logs = tuple(other for other in thread.graph_logs if other is not log)
    _uninstall()


_python_pasts: dict[bytes, list[Past]] = {}  # by token of a `tf.py_function` in a function that runs in the past


@contextmanager
def variables_as(past: Past) -> Iterator[None]:
    """Let reads of variables give what `past` says that they held, for backward functions that read them."""
    before = thread.past
    _install()
    thread.past = past
    try:
        yield
    finally:
        thread.past = before
        _uninstall()


@contextmanager
def _python_in(function: Any, past: Past) -> Iterator[None]:
    """Let Python code in a function, which runs on any thread, see the past too."""
    tokens = python_tokens(function)
    for token in tokens:
        _python_pasts.setdefault(token, []).append(past)
    try:
        yield
    finally:
        for token in tokens:
            _python_pasts[token].remove(past)


def _only(pasts: tuple[Past, ...]) -> Past:
    if any(past is not pasts[0] for past in pasts):
        text = "Python code in a tf.function runs for several backward functions at once. Ask one tape at a time."
        raise TapeUseError(text)
    return pasts[0]


class FunctionCall(NamedTuple):
    """One call of a `tf.function`, before it runs."""

    function: Any
    arguments: list[Tensor]
    captures: list[Tensor]

    def written(self, only_initialized: bool = False) -> list[Tensor]:
        """Return the handles of the variables that it may assign; with `only_initialized`, without new ones."""
        inputs = self.arguments + self.captures
        found = [inputs[position] for position in written_inputs(self.function)]
        return initialized(found) if only_initialized else found

    def run(self) -> Any:
        """Run it and return its structured result."""
        run = original.get("_call_flat", concrete_function.ConcreteFunction._call_flat)
        return run(self.function, self.arguments, self.captures)

    def note_writes(self) -> Noted:
        """Note that the variables which it may assign are about to be written."""
        return note_writes(self.written())


@contextmanager
def recomputed_is_kept(function: Any) -> Iterator[None]:
    """Let a function's gradient take what `tf.recompute_grad` would compute again: that would be drawn anew."""
    before, thread.keeps_recomputed = thread.keeps_recomputed, True
    try:
        with own_gradients(function):
            yield
    finally:
        thread.keeps_recomputed = before


@contextmanager
def watching(tensors: Sequence[Tensor], persistent: bool) -> Iterator[None]:
    """Let TensorFlow believe that somebody watches `tensors`, so that a function tells how it goes back."""
    with StockTape(persistent=persistent, watch_accessed_variables=False) as tape:
        inner = tape._tape._tape
        for tensor in tensors:
            if is_trainable(tensor):
                pywrap_tfe.TFE_Py_TapeWatch(inner, tensor)
        yield
