"""The hooks in TensorFlow, in place only while something records, and what they tell to whom."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from retrotape import _keras
from retrotape._listener import Listener, Past
from retrotape._tf import (
    BaseVariable,
    EagerTensor,
    EagerTensorBase,
    FallbackException,
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
    own_gradients,
    pass_tangents,
    pywrap_tfe,
    record,
    resource_variable_ops,
    script_ops,
    tf,
    written_inputs,
)
from retrotape.errors import TapeUseError

Tensor = Any


class _Thread(threading.local):
    listener: Listener | None = None
    past: Past | None = None  # what variables held at the time that is asked about
    py_inputs: Sequence[Tensor] | None = None  # what the `tf.py_function` that is starting was given
    graph_logs: tuple[Any, ...] = ()
    keeps_recomputed: bool = False  # whether gradients of graphs that are built now ignore `tf.recompute_grad`


_thread = _Thread()
_lock = threading.Lock()
_installed = 0
writes: dict[int, int] = {}  # by identity of the handle: when it was last written, since the hooks were installed
_clock = count(1)
_original: dict[str, Any] = {}


def _execute(op: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any = None) -> Any:
    if op == "EagerPyFunc":
        _thread.py_inputs = inputs
    if op in _WRITES:
        with _writing(op, _handles_in(inputs)):
            tensors = _original["quick_execute"](op, num_outputs, inputs, attrs, ctx, name)
    else:
        inputs = _on_gather(inputs) if op in _GATHERS else [_in_the_past(arg) for arg in inputs]
        tensors = _original["quick_execute"](op, num_outputs, inputs, attrs, ctx, name)
    for callback in ctx.op_callbacks:
        callback(op, tuple(inputs), attrs, tensors, name)
    return tensors


def _execute_cancellable(op: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, *rest: Any, **kw: Any) -> Any:
    tensors = _original["execute_with_cancellation"](op, num_outputs, inputs, attrs, ctx, *rest, **kw)
    for callback in ctx.op_callbacks:
        callback(op, tuple(inputs), attrs, tensors, None)
    return tensors


# What an op can be given that holds no variable; anything else is looked at more closely.
_PLAIN = frozenset((EagerTensor, str, int, bool, float, bytes, type(None)))
# Ops that change a variable. The slow path gives their names as bytes.
_WRITES: frozenset[str | bytes] = frozenset(
    op
    for op in dir(tf.raw_ops)
    if op.startswith(("ResourceScatter", "ResourceApply", "ResourceSparse", "ResourceStrided"))
) | {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableXlaConcatND"}
_WRITES |= {op.encode() for op in _WRITES if isinstance(op, str)}
# Ops that read a part of a variable.
_GATHERS: frozenset[str | bytes] = frozenset(
    ("ResourceGather", "ResourceGatherNd", b"ResourceGather", b"ResourceGatherNd")
)
_ACCESSES = _WRITES | _GATHERS
_fast_path_original = pywrap_tfe.TFE_Py_FastPathExecute


def _fast_path(ctx: Any, op: str, name: Any, *args: Any) -> Any:
    # Every op of the process passes here while anything records: no more than this for the most of them.
    if op in _ACCESSES:
        return _access(ctx, op, name, args)
    if _PLAIN.issuperset(map(type, args)) and _thread.past is None:
        return _fast_path_original(ctx, op, name, *args)
    if op == "ReadVariableOp":
        return _read(ctx, args[0], args[-1])
    return _run_with_reads(ctx, op, name, args)


def _run_with_reads(ctx: Any, op: str, name: Any, args: Sequence[Any]) -> Any:
    if _thread.listener is not None or _thread.past is not None:
        args = tuple(_with_reads(ctx, arg) for arg in args)
        if op == "EagerPyFunc":
            _thread.py_inputs = args[0]
    return _fast_path_original(ctx, op, name, *args)


def _access(ctx: Any, op: str, name: Any, args: Sequence[Any]) -> Any:
    if op in _GATHERS:
        return _run_with_reads(ctx, op, name, _on_gather(args))
    with _writing(op, _handles_in(args)):
        return _run_with_reads(ctx, op, name, args)


def _handles_in(args: Sequence[Any]) -> list[Tensor]:
    return [arg for arg in args if type(arg) is EagerTensor and arg.dtype == tf.resource]


@contextmanager
def _writing(op: Any, handles: list[Tensor]) -> Iterator[None]:
    """Note a write of these variables. One that fails is recorded by nobody and may still have written."""
    listener = _thread.listener
    if listener is None or not listener.hearing():
        handles = _initialized(handles)
    if listener is not None:
        listener.on_update(op if type(op) is str else op.decode(), handles)
    if _thread.past is not None:
        _thread.past.on_write(handles)
    before, now = [writes.get(handle._id, 0) for handle in handles], _note_writes(handles)
    try:
        yield
    except FallbackException:  # nothing has run: the slow path is taken next, and is noted there
        writes.update(zip([handle._id for handle in handles], before, strict=True))
        raise
    if listener is not None:
        listener.on_updated(handles, now)


def _note_writes(handles: Sequence[Tensor]) -> int:
    """Note that variables are about to be written, and return when that is."""
    now = next(_clock)
    for handle in handles:
        writes[handle._id] = now
    return now


def now() -> int:
    """Return a moment after all writes so far and before all that come."""
    return next(_clock)


def _initialized(handles: list[Tensor]) -> list[Tensor]:
    """Leave out new variables: what they are given first is no update."""
    ctx = context.context()
    return [
        handle
        for handle in handles
        if handle._id in writes or bool(_fast_path_original(ctx, "VarIsInitializedOp", None, handle))
    ]


def _on_gather(args: Sequence[Any]) -> Sequence[Any]:
    args = [_in_the_past(arg) for arg in args]
    if _thread.listener is not None:
        _thread.listener.on_gather(_handles_in(args))
    return args


def _in_the_past(arg: Any) -> Any:
    """Return, for the handle of a variable, that of one which holds what it held at the time that is asked about."""
    if _thread.past is None or type(arg) is not EagerTensor or arg.dtype != tf.resource:
        return arg
    handle = _thread.past.stand_in(arg)
    if handle is None:
        return arg
    # A tape of the user's within the backward function must still see a read of the variable.
    _original["record_operation"]("ReadVariableOp", [handle], [arg], lambda grad: [grad])
    return handle


def _with_reads(ctx: Any, arg: Any) -> Any:
    if isinstance(arg, (list, tuple)):
        inside = any(isinstance(item, BaseVariable) for item in arg) or _thread.past is not None
        return [_with_reads(ctx, item) for item in arg] if inside else arg
    if not isinstance(arg, BaseVariable):
        return _in_the_past(arg)
    if arg.trainable:  # what the fast path itself would tell
        pywrap_tfe.TFE_Py_TapeVariableAccessed(arg)
        pywrap_tfe.TFE_Py_VariableWatcherVariableAccessed(arg)
    if _thread.listener is not None:
        _thread.listener.on_variable(arg)
    return _read(ctx, arg.handle, arg.dtype)


def _read(ctx: Any, handle: Tensor, dtype: Any) -> Tensor:
    if _thread.listener is not None:
        _thread.listener.on_read(handle)
    value = None if _thread.past is None else _past_read(handle)
    return _fast_path_original(ctx, "ReadVariableOp", None, handle, "dtype", dtype) if value is None else value


def live_value(handle: Tensor, dtype: Any) -> Tensor:
    """Return what a variable holds now, whatever it held in the past."""
    return _fast_path_original(context.context(), "ReadVariableOp", None, handle, "dtype", dtype)


def _past_read(handle: Tensor) -> Tensor | None:
    assert _thread.past is not None
    value = _thread.past.value(handle)
    if value is None:
        return None
    result = tf.identity(value)
    _original["record_operation"]("ReadVariableOp", [result], [handle], lambda grad: [grad])
    return result


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
        if _thread.listener is not None:
            _thread.listener.on_backward(name, output_tensors, input_tensors, backward_function)
    elif name.startswith("__forward_"):
        for log in _thread.graph_logs:
            log.on_call(output_tensors, input_tensors, backward_function)
    _original["record_operation"](op_type, output_tensors, input_tensors, backward_function, forward_function)


def _jvp(op: str, attrs: Any, inputs: Any, outputs: Any, tangents: Any, use_batch: bool = False) -> Any:
    # The fast path computes tangents before it runs callbacks, and what computes them is given the op's outputs.
    if _thread.listener is not None and outputs and type(outputs[0]) is EagerTensor:
        _thread.listener.on_tangents(op, inputs, attrs, outputs)
    found = forwardprop._jvp_dispatch(op, attrs, inputs, outputs, tangents, use_batch)
    recorded = _thread.listener is not None or _thread.graph_logs
    if op == "SoftmaxCrossEntropyWithLogits" and recorded and found[1] is not None and tangents[1] is not None:
        found = [found[0], found[1] - tangents[1]]  # TensorFlow forgets the labels in `softmax - labels`
    return found


def _stop_gradient(input: Any, name: Any = None) -> Any:
    result = _original["stop_gradient"](input, name)
    if any(log is not None and log.passes_tangents() for log in (_thread.listener, *_thread.graph_logs)):
        pass_tangents(input, result)
    return result


def _variable_accessed(variable: Any) -> None:
    if not tf.executing_eagerly():
        for log in _thread.graph_logs:
            log.on_variable(variable)
    elif _thread.listener is not None:
        _thread.listener.on_variable(variable)
    _original["variable_accessed"](variable)


def _eager_mode_decorator(f: Any, args: Any, kwargs: Any) -> Any:
    original = _original["_eager_mode_decorator"]
    listener = _thread.listener
    if listener is None:
        return original(f, args, kwargs)
    recomputes = f.__module__ == custom_gradient.__name__ and f.__qualname__.startswith("recompute_grad.")
    return listener.on_custom_gradient(recomputes, lambda: original(f, args, kwargs))


def _call_flat(self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
    if not tf.executing_eagerly():
        return _original["_call_flat"](self, tensor_inputs, captured_inputs)
    call = FunctionCall(self, list(tensor_inputs), list(captured_inputs))
    written = call.written()
    if _thread.past is not None:
        _thread.past.on_write(written)
        call = FunctionCall(self, *([_in_the_past(arg) for arg in part] for part in (call.arguments, call.captures)))
    listener = _thread.listener
    if listener is None:
        _note_writes(_initialized(written))
        return call.run()
    return listener.on_call(call)


def _eager_func_call(self: Any, device: Any, token: Any, args: Any) -> Any:
    if _thread.past is None and _pasts:  # Python code in a function runs on whatever thread TensorFlow takes
        with variables_as(_only_past()):
            return _eager_func_call(self, device, token, args)
    original = _original["__call__"]
    listener, outer = _thread.listener, _thread.py_inputs
    _thread.py_inputs = None
    if listener is None or outer is None:
        return original(self, device, token, args)
    return listener.on_py_function(outer, args, lambda: original(self, device, token, args))


# Where a tensor is only shown. What is shown decides nothing.
_SHOWING = frozenset(("__format__", "__repr__", "__str__", "value_text", "numpy_text"))


def _numpy(self: Any) -> Any:
    if _thread.listener is not None:
        how = sys._getframe(1).f_code.co_name
        if how not in _SHOWING:
            _thread.listener.on_look(self, how)
    return _original["_numpy"](self)


def _read_whole(item: Any) -> Any:
    """Return the value of a variable, also of a Keras one; anything else as it is."""
    inner = item if isinstance(item, (tf.Tensor, BaseVariable)) else getattr(item, "_value", item)
    return inner.read_value() if isinstance(inner, BaseVariable) else item


def _py_func_common(func: Any = None, inp: Any = None, *rest: Any, **kw: Any) -> Any:
    if _thread.listener is not None and tf.executing_eagerly() and isinstance(inp, (list, tuple)):
        inp = [_read_whole(item) for item in inp]
        for item in inp:
            if isinstance(item, EagerTensor):
                _thread.listener.on_look(item, "numpy_function")
    return _original["py_func_common"](func, inp, *rest, **kw)


def _get_gradient_function(op: Any) -> Any:
    found = _original["get_gradient_function"](op)
    if _thread.keeps_recomputed and op.type == "IdentityN" and is_recompute(found):
        return lambda op, *grads: list(grads)
    return found


_HOOKS: tuple[tuple[Any, str, Callable], ...] = (
    (pywrap_tfe, "TFE_Py_FastPathExecute", _fast_path),
    (execute, "quick_execute", _execute),
    (execute, "execute_with_callbacks", _execute),
    (execute, "execute", _execute),
    (execute, "execute_with_cancellation", _execute_cancellable),
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
    if _thread.listener is not None:
        _thread.listener.on_keras_variable(variable)
    for log in _thread.graph_logs:
        log.on_keras_variable(variable)


def _on_layer(name: str, run: Callable[[], Any]) -> Any:
    listener = _thread.listener
    return run() if listener is None else listener.on_layer(name, run)


def _install() -> None:
    global _installed
    with _lock:
        _installed += 1
        if _installed == 1:
            for owner, name, hook in _HOOKS:
                _original[name] = getattr(owner, name)
                setattr(owner, name, hook)
            _keras.install(_on_keras_variable, _on_layer)
            pywrap_tfe.TFE_Py_RegisterJVPFunction(_jvp)


def _uninstall() -> None:
    global _installed
    with _lock:
        _installed -= 1
        if _installed == 0:
            for owner, name, _ in _HOOKS:
                setattr(owner, name, _original[name])
            pywrap_tfe.TFE_Py_RegisterJVPFunction(forwardprop._jvp_dispatch)
            _keras.uninstall()
            writes.clear()
            # Somebody else's callbacks may have come or gone meanwhile; they need the slow path's switch.
            listening = bool(context.context().op_callbacks)
            execute.execute = execute.execute_with_callbacks if listening else execute.quick_execute


def attach(listener: Listener) -> None:
    """Let `listener` hear of everything that runs on this thread."""
    _install()
    _thread.listener = listener
    local = context.context()._thread_local_data
    local.op_callbacks = list(local.op_callbacks)  # TensorFlow lets the threads of all replicas share one list
    context.context().add_op_callback(listener.on_op)


def detach(listener: Listener) -> None:
    """End what `attach` began."""
    context.context().remove_op_callback(listener.on_op)
    _thread.listener = None
    _uninstall()


def attach_graph(log: Any) -> None:
    """Let `log` hear which variables are read in a graph, and how functions that are called there go back."""
    _install()
    _thread.graph_logs = (*_thread.graph_logs, log)


def detach_graph(log: Any) -> None:
    """End what `attach_graph` began."""
    _thread.graph_logs = tuple(other for other in _thread.graph_logs if other is not log)
    _uninstall()


_pasts: list[Past] = []  # of backward functions that run now, on any thread


@contextmanager
def variables_as(past: Past | None) -> Iterator[None]:
    """Let reads of variables give what `past` says that they held, for backward functions that read them."""
    before = _thread.past
    _install()
    _thread.past = past
    if past is not None:
        _pasts.append(past)
    try:
        yield
    finally:
        if past is not None:
            _pasts.remove(past)
        _thread.past = before
        _uninstall()


def _only_past() -> Past:
    if any(past is not _pasts[-1] for past in _pasts):
        raise TapeUseError(
            "Python code in a tf.function runs for several backward functions at once, and it cannot be told for which "
            "of them. Ask one tape at a time."
        )
    return _pasts[-1]


class FunctionCall(NamedTuple):
    """One call of a `tf.function`, before it runs."""

    function: Any
    arguments: list[Tensor]
    captures: list[Tensor]

    def written(self, initialized: bool = False) -> list[Tensor]:
        """Return the handles of the variables that it may assign; without new ones, if only `initialized` are meant."""
        inputs = self.arguments + self.captures
        found = [inputs[position] for position in written_inputs(self.function)]
        return _initialized(found) if initialized else found

    def run(self) -> Any:
        """Run it and return its structured result."""
        original = _original.get("_call_flat", concrete_function.ConcreteFunction._call_flat)
        return original(self.function, self.arguments, self.captures)

    def note_writes(self) -> int:
        """Note that the variables which it may assign are about to be written, and return when that is."""
        return _note_writes(self.written())


@contextmanager
def recomputed_is_kept(function: Any) -> Iterator[None]:
    """Let a function's gradient take what `tf.recompute_grad` would compute again: that would be drawn anew."""
    before, _thread.keeps_recomputed = _thread.keeps_recomputed, True
    try:
        with own_gradients(function):
            yield
    finally:
        _thread.keeps_recomputed = before


@contextmanager
def watching(tensors: Sequence[Tensor], persistent: bool) -> Iterator[None]:
    """Let TensorFlow believe that somebody watches `tensors`, so that a function tells how it goes back."""
    with StockTape(persistent=persistent, watch_accessed_variables=False) as tape:
        inner = tape._tape._tape
        for tensor in tensors:
            if is_trainable(tensor):
                pywrap_tfe.TFE_Py_TapeWatch(inner, tensor)
        yield
