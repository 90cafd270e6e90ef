"""The hooks in TensorFlow, installed only while something records; they notify listeners and graph sessions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.tf import hook_table, keras_api
from retrotape.tf.core import (
    BaseVariable,
    EagerTensor,
    EagerTensorBase,
    array_ops,
    concrete_function,
    context,
    custom_gradient,
    execute,
    forwardprop,
    is_recompute,
    ops,
    pass_tangents,
    pywrap_tfe,
    record,
    resource_variable_ops,
    script_ops,
    tf,
    written_inputs,
)
from retrotape.tf.function_gradients import own_gradients
from retrotape.tf.hook_table import original, unhooked
from retrotape.tf.hooks_ops import (
    WriteStamp,
    execute_cancellable,
    fast_path,
    initialized,
    make_run_op,
    stamp_writes,
    substitute_past,
    thread,
    writes,
)
from retrotape.tf.hooks_ops import live_value as live_value
from retrotape.tf.hooks_ops import now as now
from retrotape.tf.hooks_past import past_of, python_in, variables_as
from retrotape.tf.listener import Listener
from retrotape.tf.scopes import Scope


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
        for session in thread.graph_sessions:
            session.on_call(output_tensors, input_tensors, backward_function)
    original[record, "record_operation"](op_type, output_tensors, input_tensors, backward_function, forward_function)


def _jvp(op: str, attrs: Any, inputs: Any, outputs: Any, tangents: Any, use_batch: bool = False) -> Any:
    # The fast path computes tangents, which read the op's outputs, before it runs callbacks.
    if thread.listener is not None and outputs and type(outputs[0]) is EagerTensor:
        thread.listener.on_tangents(op, inputs, attrs, outputs)
    found = forwardprop._jvp_dispatch(op, attrs, inputs, outputs, tangents, use_batch)
    recorded = thread.listener is not None or thread.graph_sessions
    if op == "SoftmaxCrossEntropyWithLogits" and recorded and found[1] is not None and tangents[1] is not None:
        found = [found[0], found[1] - tangents[1]]  # TensorFlow ignores the labels in `softmax - labels`
    return found


def _stop_gradient(input: Any, name: Any = None) -> Any:
    result = original[array_ops, "stop_gradient"](input, name)
    if any(one is not None and one.passes_tangents() for one in (thread.listener, *thread.graph_sessions)):
        pass_tangents(input, result)
    return result


def _variable_accessed(variable: Any) -> None:
    if not tf.executing_eagerly():
        if thread.graph_sessions:
            by_itself = sys._getframe(1).f_locals.get("self") is variable  # not by a function that was traced before
            for session in thread.graph_sessions:
                session.on_variable(variable, by_itself)
    elif thread.listener is not None:
        thread.listener.on_variable(variable)
    original[resource_variable_ops, "variable_accessed"](variable)


def _eager_mode_decorator(f: Any, args: Any, kwargs: Any) -> Any:
    run = original[custom_gradient, "_eager_mode_decorator"]
    listener = thread.listener
    if listener is None:
        return run(f, args, kwargs)
    recomputes = f.__module__ == custom_gradient.__name__ and f.__qualname__.startswith("recompute_grad.")
    return listener.on_custom_gradient(recomputes, lambda: run(f, args, kwargs))


def _call_flat(self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
    if not tf.executing_eagerly():
        return original[concrete_function.ConcreteFunction, "_call_flat"](self, tensor_inputs, captured_inputs)
    call = FunctionCall(self, list(tensor_inputs), list(captured_inputs))
    if thread.past is None:
        return _call(call)
    thread.past.on_write(call.written())
    call = FunctionCall(self, *([substitute_past(arg) for arg in part] for part in (call.arguments, call.captures)))
    with python_in(self, thread.past):
        return _call(call)


def _call(call: FunctionCall) -> Any:
    if thread.listener is not None:
        return thread.listener.on_call(call)
    stamp_writes(call.written(only_initialized=True))
    return call.run()


def _eager_func_call(self: Any, device: Any, token: Any, args: Any) -> Any:
    past = past_of(token) if thread.past is None else None
    if past is not None:
        with variables_as(past):
            return _eager_func_call(self, device, token, args)
    run = original[script_ops.EagerFunc, "__call__"]
    listener, outer = thread.listener, thread.py_inputs
    thread.py_inputs = None
    if listener is None or outer is None:
        return run(self, device, token, args)
    return listener.on_py_function(outer, args, lambda: run(self, device, token, args))


# Callers that only display a tensor, which no control flow depends on.
_SHOWING = frozenset(("__format__", "__repr__", "__str__", "value_text", "numpy_text"))


def _numpy(self: Any) -> Any:
    if thread.listener is not None:
        how = sys._getframe(1).f_code.co_name
        thread.listener.on_host_read(self, how, how in _SHOWING)
    return original[EagerTensorBase, "_numpy"](self)


def _read_whole(item: Any) -> Any:
    """Return the value of a variable, TensorFlow's or Keras'; anything else as it is."""
    inner = item if isinstance(item, (tf.Tensor, BaseVariable)) else getattr(item, "_value", item)
    return inner.read_value() if isinstance(inner, BaseVariable) else item


def _py_func_common(func: Any = None, inp: Any = None, *rest: Any, **kw: Any) -> Any:
    if thread.listener is not None and tf.executing_eagerly() and isinstance(inp, (list, tuple)):
        inp = [_read_whole(item) for item in inp]
        for item in inp:
            if isinstance(item, EagerTensor):
                thread.listener.on_host_read(item, "numpy_function")
    return original[script_ops, "py_func_common"](func, inp, *rest, **kw)


def _to_dlpack(tensor: Any) -> Any:
    if thread.listener is not None:
        thread.listener.on_host_read(tensor, "__dlpack__")
    return original[pywrap_tfe, "TFE_ToDlpackCapsule"](tensor)


def _get_gradient_function(op: Any) -> Any:
    found = original[ops, "get_gradient_function"](op)
    if thread.keeps_recomputed and op.type == "IdentityN" and is_recompute(found):
        return lambda op, *grads: list(grads)
    return found


hook_table.add_hooks(
    (pywrap_tfe, "TFE_Py_FastPathExecute", fast_path),
    (pywrap_tfe, "TFE_ToDlpackCapsule", _to_dlpack),
    (execute, "quick_execute", make_run_op()),
    (execute, "execute_with_callbacks", make_run_op()),
    (execute, "execute", make_run_op()),
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
_HOOKS = hook_table.hooks


def _on_keras_variable(variable: Any) -> None:
    if thread.listener is not None:
        thread.listener.on_keras_variable(variable)
    for session in thread.graph_sessions:
        session.on_keras_variable(variable)


def _on_layer(name: str, run: Callable[[], Any]) -> Any:
    listener = thread.listener
    return run() if listener is None else listener.on_layer(name, run)


_callbacks: list[list[Callable[..., Any]]] = []  # of all threads with a listener since hooks were installed


def _on() -> None:
    pywrap_tfe.TFE_Py_RegisterJVPFunction(_jvp)


def _off() -> None:
    pywrap_tfe.TFE_Py_RegisterJVPFunction(forwardprop._jvp_dispatch)
    writes.clear()
    # Other callbacks may have been removed in the meantime, and TensorFlow does not switch back to the fast path
    # while ours is registered.
    in_use = context.context().op_callbacks or any(_callbacks)
    if execute.execute is execute.execute_with_callbacks and not in_use:
        execute.execute = execute.quick_execute
    _callbacks.clear()


hook_table.add_finder(lambda: keras_api.add_hooks(_on_keras_variable, _on_layer))
hook_table.add_switch(_on, _off)


def attach(listener: Listener) -> None:
    """Notify `listener` of everything that runs on this thread. If this is interrupted, `detach` undoes it."""
    _release_idle()
    local = context.context()._thread_local_data
    # A new list: in TensorFlow, the threads of all replicas share one. Ours is the first, before others run ops.
    others = [callback for callback in local.op_callbacks if callback != listener.on_op]
    callbacks = [listener.on_op, *others]
    local.op_callbacks = callbacks
    with hook_table.lock:
        _callbacks[:] = [*filter(None, _callbacks), callbacks]  # without those of closed tapes
    thread.listener = listener
    hook_table.need(listener, callbacks)


def others_listen() -> bool:
    """Return whether others have added op callbacks on this thread, such as `tf.debugging.enable_check_numerics`."""
    callbacks, listener = context.context()._thread_local_data.op_callbacks, thread.listener
    return bool(callbacks) and any(listener is None or one != listener.on_op for one in callbacks)


def is_attached(listener: Listener) -> bool:
    """Return whether `listener` is notified of what runs on this thread."""
    return thread.listener is listener and listener in hook_table.users


def detach(listener: Listener, here: bool = True) -> None:
    """Undo `attach`; on the same thread if `here`, else on another one."""
    lists = [hook_table.users.get(listener)]
    if here:
        lists.append(context.context()._thread_local_data.op_callbacks)
    for callbacks in lists:
        if callbacks and listener.on_op in callbacks:
            callbacks.remove(listener.on_op)
    if here:
        thread.listener = None  # on another thread it stays, and ignores events
    hook_table.release(listener)


def _release_idle() -> None:
    """Remove users that no longer need hooks, but were interrupted, twice, before they could release them."""
    for user in list(hook_table.users):
        if user.is_idle():
            hook_table.users.pop(user, None)


def attach_graph(session: Any) -> None:
    """Notify `session` of variables read in a graph, and of the backward functions of calls there."""
    _release_idle()
    thread.graph_sessions = (*(other for other in thread.graph_sessions if not other.is_idle()), session)
    hook_table.need(session)


def detach_graph(session: Any) -> None:
    """Undo `attach_graph`."""
    thread.graph_sessions = tuple(other for other in thread.graph_sessions if other is not session)
    hook_table.release(session)


class FunctionCall(NamedTuple):
    """One call of a `tf.function`, before it runs."""

    function: Any
    arguments: list[Tensor]
    captures: list[Tensor]

    def written(self, only_initialized: bool = False) -> list[Tensor]:
        """Return the handles of the variables that it may assign; only initialized ones if requested."""
        inputs = self.arguments + self.captures
        found = [inputs[position] for position in written_inputs(self.function)]
        return initialized(found) if only_initialized else found

    def run(self) -> Any:
        """Run it and return its structured result."""
        run = unhooked(concrete_function.ConcreteFunction, "_call_flat")
        return run(self.function, self.arguments, self.captures)

    def stamp_writes(self) -> WriteStamp:
        """Assign a time to the writes of the variables that it may assign."""
        return stamp_writes(self.written())


class keep_recomputed(Scope):
    """Make a function's gradient keep what `tf.recompute_grad` would recompute: random ops would draw other values."""

    def __init__(self, function: Any) -> None:
        self._before, self._gradients = thread.keeps_recomputed, own_gradients(function)

    def enter(self) -> None:
        """Begin the block."""
        thread.keeps_recomputed = True
        self._gradients.enter()

    def leave(self) -> None:
        """End the block."""
        thread.keeps_recomputed = self._before
        self._gradients.leave()
