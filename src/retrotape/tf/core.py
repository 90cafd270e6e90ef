"""TensorFlow's private surface: everything of `tensorflow.python` that retrotape touches, and no other file may.

What is used, and why there is no public way, is in the table of `_tf_names`: a new line there is part of every new use.
It is checked here, before anything else touches TensorFlow.

`_hooks` changes modules only while a tape records, and puts them back when the last one stops.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from operator import attrgetter, methodcaller
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from retrotape._types import Tensor
from retrotape.errors import IncompatibleTensorFlowError, MissingTensorFlowError
from retrotape.tf.closures import values_in
from retrotape.tf.compatibility import check_tensorflow, shown

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingTensorFlowError from error

version = shown(getattr(tf, "__version__", None))
check_tensorflow(version)

try:
    # Most are for `_hooks` and `_tf_functions`, which may not import them themselves.
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python import pywrap_tfe as pywrap_tfe
    from tensorflow.python.distribute import cross_device_ops as cross_device_ops
    from tensorflow.python.distribute import distribute_lib as distribute_lib
    from tensorflow.python.distribute import mirrored_run as mirrored_run
    from tensorflow.python.distribute import values as distribute_values
    from tensorflow.python.eager import backprop as backprop
    from tensorflow.python.eager import backprop_util as backprop_util
    from tensorflow.python.eager import context as context
    from tensorflow.python.eager import core as eager_core
    from tensorflow.python.eager import execute as execute
    from tensorflow.python.eager import forwardprop as forwardprop
    from tensorflow.python.eager import record as record
    from tensorflow.python.eager.polymorphic_function import atomic_function as atomic_function
    from tensorflow.python.eager.polymorphic_function import concrete_function as concrete_function
    from tensorflow.python.framework import auto_control_deps_utils as auto_control_deps_utils
    from tensorflow.python.framework import composite_tensor_gradient as composite_tensor_gradient
    from tensorflow.python.framework import func_graph as func_graph
    from tensorflow.python.framework import op_def_library as op_def_library
    from tensorflow.python.framework import op_def_registry as op_def_registry
    from tensorflow.python.framework import ops as ops
    from tensorflow.python.ops import array_ops as array_ops
    from tensorflow.python.ops import custom_gradient as custom_gradient
    from tensorflow.python.ops import gradients_util as gradients_util
    from tensorflow.python.ops import handle_data_util as handle_data_util
    from tensorflow.python.ops import resource_variable_ops as resource_variable_ops
    from tensorflow.python.ops import script_ops as script_ops
except ImportError as error:
    raise IncompatibleTensorFlowError(version, str(error)) from error

EagerTensor = ops.EagerTensor
DistributedVariable = distribute_values.DistributedVariable
SyncOnReadVariable = distribute_values.SyncOnReadVariable
EagerTensorBase = ops._EagerTensorBase
FallbackException = eager_core._FallbackException
StockTape = backprop.GradientTape  # whatever `tf.GradientTape` is: it may be ours, `rt.install` puts it there
BaseVariable = resource_variable_ops.BaseResourceVariable
CompositeTensor = tf.__internal__.CompositeTensor
eager_dtype: Callable[[Tensor], int] = EagerTensor._datatype_enum


identity_of: Callable[[Tensor], int] = attrgetter("_id")  # of a tensor or handle: a number that is never reused
shape_of: Callable[[Tensor], Any] = methodcaller("_shape_tuple")
_ORDINARY = (tf.bool, tf.string, *(tf.as_dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)))
_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_is(function: _Function) -> _Function:
    """Keep AutoGraph, which rewrites what a tf.function calls, from rewriting this."""
    return tf.autograph.experimental.do_not_convert(function)


def as_rewritten(function: _Function) -> _Function:
    """Let AutoGraph rewrite a function of the user's, as it would if the user's code called it."""
    return tf.__internal__.autograph.tf_convert(function, tf.__internal__.autograph.control_status_ctx())


def whole_of(variable: Any) -> Any | None:
    """Return the variable of which this one is the part on one device; None where it is none."""
    # Which of the two has it depends on the kind of the variable; of the whole itself it is something else.
    for owner in (variable, getattr(variable, "_handle", None)):
        whole = getattr(owner, "_distributed_container", None)
        if callable(whole):
            return whole()
    return None


def traced(function: _Function) -> _Function:
    """Return a `tf.function` that is made for one use, and so says nothing about being traced anew."""
    compiled = tf.function(function, autograph=False)
    compiled._omit_frequent_tracing_warning = True
    return compiled


def graph_here() -> Any:
    """Return the graph that is being built, None in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def next_id() -> int:
    """Return a number greater than the identity of every tensor that exists, smaller than any to come."""
    return pywrap_tfe.TFE_Py_UID()


def op_def(op: str) -> Any | None:
    """Return the definition of `op`; None for the name of a function."""
    return op_def_registry.get(op)


def _buffer_of(tensor: Tensor) -> int | None:
    """Return where the value of an eager tensor lies; None where that cannot be told."""
    if "CPU" in tensor.backing_device:
        return np.frombuffer(tensor, np.uint8).__array_interface__["data"][0]
    if not tensor.dtype.is_floating:
        return None
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    # The first field of what the capsule holds.
    return ctypes.c_void_p.from_address(_capsule_pointer(capsule, b"dltensor")).value


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def share_buffer(left: Tensor, right: Tensor) -> bool:
    """Return whether two eager tensors are one place in memory.

    A variable that is read hands out its own buffer, and copies it before it is changed while anybody holds that. So
    two reads give the same buffer exactly if nothing was assigned in between, as long as the first one is held.
    """
    if left is right or left.shape.num_elements() == 0:
        return left.shape == right.shape
    place = _buffer_of(left)
    return place is not None and place == _buffer_of(right)


_written: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()


def written_inputs(function: Any) -> tuple[int, ...]:
    """Return which inputs of a concrete function are resources that it may write to."""
    found = _written.get(function)
    if found is None:
        graph = function._func_graph
        read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
        resources = (index for index, tensor in enumerate(graph.inputs) if tensor.dtype == tf.resource)
        found = _written[function] = tuple(index for index in resources if index not in read_only)
    return found


_tokens: WeakKeyDictionary[Any, tuple[bytes, ...]] = WeakKeyDictionary()


def python_tokens(function: Any) -> tuple[bytes, ...]:
    """Return the tokens of the `tf.py_function`s in a concrete function and in the functions that it calls."""
    found = _tokens.get(function)
    if found is None:
        graph_def = function._func_graph.as_graph_def()
        nodes = [*graph_def.node, *(node for inner in graph_def.library.function for node in inner.node_def)]
        found = _tokens[function] = tuple({node.attr["token"].s for node in nodes if node.op == "EagerPyFunc"})
    return found


def is_recompute(rule: Any) -> bool:
    """Return whether a gradient function is that of a `tf.recompute_grad`."""
    return any(
        getattr(value, "__module__", None) == custom_gradient.__name__
        and getattr(value, "__qualname__", "").startswith("recompute_grad.")
        for value in values_in(rule)
    )


def resource_name(handle: Tensor) -> str:
    """Return what tells a resource from others: two handles of the same name are one variable."""
    return repr(handle)


def op_list(names: Sequence[str]) -> bytes:
    """Return the definitions of ops as TensorFlow writes them to files."""
    return op_def_pb2.OpList(op=[op_def_registry.get(name) for name in names]).SerializeToString(deterministic=True)


def run(op: str, inputs: Sequence[Tensor], attrs: tuple[Any, ...], num_outputs: int) -> list[Tensor]:
    """Run `op` by name; a stock tape that is open sees it."""
    if not tf.executing_eagerly():
        return _add_to_graph(op, inputs, attrs)
    outputs = execute.execute(op, num_outputs, list(inputs), attrs, context.context())
    if execute.must_record_gradient():
        execute.record_gradient(op, list(inputs), attrs, outputs)
    return outputs or []


def _add_to_graph(op: str, inputs: Sequence[Tensor], attrs: tuple[Any, ...]) -> list[Tensor]:
    definition, rest = op_def_registry.get(op), list(inputs)
    said = dict(zip(attrs[::2], attrs[1::2], strict=True))
    inferred: set[str] = set()
    arguments: dict[str, Any] = {}
    for arg in definition.input_arg:
        count = said[arg.number_attr] if arg.number_attr else 1
        count = len(said[arg.type_list_attr]) if arg.type_list_attr else count
        single = not (arg.number_attr or arg.type_list_attr)
        arguments[arg.name] = rest[0] if single else rest[:count]
        del rest[:count]
        inferred.update((arg.type_attr, arg.number_attr, arg.type_list_attr))
    made = op_def_library.apply_op(op, **arguments, **{name: v for name, v in said.items() if name not in inferred})
    if isinstance(made, tf.Operation):
        return []
    return list(made) if isinstance(made, (list, tuple)) else [made]


def stock_tape_listens() -> bool:
    """Return whether a stock tape of this thread is open."""
    return execute.must_record_gradient()


def accumulating() -> bool:
    """Return whether a forward accumulator is open on this thread."""
    return execute.must_record_gradient() and bool(pywrap_tfe.TFE_Py_PackJVPs([])[0])


def accumulates_only(tensors: Sequence[Tensor]) -> bool:
    """Return whether forward accumulators are open, and no stock tape that watches any of `tensors`."""
    return accumulating() and not record.should_record_backprop(list(tensors))


def tell_stock_tapes(name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
    """Let stock tapes and forward accumulators go back from `outputs` to `inputs` by `backward`."""
    pywrap_tfe.TFE_Py_TapeSetRecordOperation(name, list(outputs), list(inputs), backward, None)


def pass_tangents(tensor: Tensor, copy: Tensor) -> None:
    """Let forward accumulators hold for `copy` the tangents that they hold for `tensor`."""
    indices, tangents = pywrap_tfe.TFE_Py_PackJVPs([tensor])
    if tangents:
        # Not the tangents of tangents, which are known already: what is told twice is added up.
        own = tuple(tuple(pair for pair in pairs if pair[0] == 0) for pairs in indices)
        outputs, inputs = [copy, *tangents], [tensor, *tangents]
        record.record_operation_forwardprop_only("tangents", outputs, inputs, None, own)


def registered_rule(op: str) -> Callable | None:
    """Return TensorFlow's gradient function, None where it declares that there is none.

    Raises:
      LookupError: If TensorFlow says nothing about `op`.
    """
    return ops.gradient_registry.lookup(op)


def operation_rule(operation: Any) -> Callable | None:
    """Like `registered_rule`, for an operation of a graph, which may carry a gradient of its own."""
    return ops.get_gradient_function(operation)


def is_trainable(dtype: Any) -> bool:
    """Return whether gradients flow through `dtype`."""
    return backprop_util.IsTrainable(dtype)


# The numbers of the dtypes through which gradients flow.
TRAINABLE_DTYPES = frozenset(number for number in range(1, 24) if is_trainable(tf.as_dtype(number)))


def zeros(shape: Any, dtype: Any) -> Tensor:
    """Return zeros of any dtype that has numbers: TensorFlow has no kernel for those of eight bits and fewer."""
    kind = tf.as_dtype(dtype)
    if is_trainable(kind) or kind in _ORDINARY:
        return tf.zeros(shape, kind)
    sizes = tf.get_static_value(tf.convert_to_tensor(shape, tf.int32)) if isinstance(shape, tf.Tensor) else shape
    if sizes is None or None in list(sizes):
        return tf.cast(tf.zeros(shape), kind)
    return tf.constant(np.zeros([int(size) for size in sizes], kind.as_numpy_dtype), kind)


def aggregate(gradients: Sequence[Any]) -> Any:
    """Add gradients as the stock tape does: dense ones by one AddN, sparse ones by concatenation."""
    if all(isinstance(gradient, tf.Tensor) for gradient in gradients):
        return tf.raw_ops.AddN(inputs=list(gradients))
    return backprop_util.AggregateIndexedSlicesGradients(list(gradients))
