"""TensorFlow's private API: the only file that imports from `tensorflow.python`.

The table in `private_names` lists what is used and why no public API suffices; every new use needs a line there. The
table is checked here, before anything else uses TensorFlow.

`hooks` patches TensorFlow only while a tape records, and restores it when the last one stops.
"""

from __future__ import annotations

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
    # Most are re-exported for `hooks` and `functions`.
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python import pywrap_tfe as pywrap_tfe
    from tensorflow.python.distribute import collective_all_reduce_strategy
    from tensorflow.python.distribute import cross_device_ops as cross_device_ops
    from tensorflow.python.distribute import distribute_lib as distribute_lib
    from tensorflow.python.distribute import mirrored_run as mirrored_run
    from tensorflow.python.distribute import ps_values as ps_values
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
    from tensorflow.python.ops import summary_ops_v2 as summary_ops_v2
except ImportError as error:
    raise IncompatibleTensorFlowError(version, str(error)) from error

EagerTensor = ops.EagerTensor
DistributedValues = distribute_values.DistributedValues
DistributedVariable = distribute_values.DistributedVariable
SyncOnReadVariable = distribute_values.SyncOnReadVariable
CollectiveStrategy = collective_all_reduce_strategy.CollectiveAllReduceExtended
Mirrored = distribute_values.Mirrored
AggregatingVariable = ps_values.AggregatingVariable
EagerTensorBase = ops._EagerTensorBase
FallbackException = eager_core._FallbackException
TensorProto = type(tf.make_tensor_proto(0))
StockTape = backprop.GradientTape  # not `tf.GradientTape`, which `rt.install` may have replaced
BaseVariable = resource_variable_ops.BaseResourceVariable
PlainVariable = resource_variable_ops.ResourceVariable
CompositeTensor = tf.__internal__.CompositeTensor
eager_dtype: Callable[[Tensor], int] = EagerTensor._datatype_enum


identity_of: Callable[[Tensor], int] = attrgetter("_id")  # of a tensor or handle: unique, never reused
shape_of: Callable[[Tensor], Any] = methodcaller("_shape_tuple")
size_of: Callable[[Tensor], int] = methodcaller("_num_elements")
_ORDINARY = (tf.bool, tf.string, *(tf.as_dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)))
_Function = TypeVar("_Function", bound=Callable[..., Any])


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a tensor, or of anything that may have some: never ask a tensor itself.

    On Python 3.11 its dictionary is made where it is asked for the first time. TensorFlow makes one too, in the
    traversal of a tensor, so a garbage collection at that very moment leaves two for the same values, and a later
    one follows freed memory. The empty dictionary is freed at once: Python takes it up again, and allocates nothing
    at which a collection could begin.
    """
    try:
        return {} or value.__dict__
    except AttributeError:
        return {}


def as_is(function: _Function) -> _Function:
    """Exclude a function from conversion by AutoGraph."""
    return tf.autograph.experimental.do_not_convert(function)


def as_rewritten(function: _Function) -> _Function:
    """Convert a user function with AutoGraph, as if user code called it."""
    return tf.__internal__.autograph.tf_convert(function, tf.__internal__.autograph.control_status_ctx())


def handles_in(variables: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the identities of the handles of variables, TensorFlow's or Keras'; None if there are other things."""
    found = []
    for variable in variables:
        plain: Any = variable if type(variable) is PlainVariable else getattr(variable, "_value", None)
        if type(plain) is not PlainVariable:
            return None
        found.append(plain._handle._id)
    return tuple(found)


def owners_of(variables: Sequence[Any]) -> dict[int, Any]:
    """Return the Keras variables among variables, by `id` of the variable inside."""
    return {id(one._value): one for one in variables if type(one) is not PlainVariable}


def whole_of(variable: Any) -> Any | None:
    """Return the distributed variable that this one is a component of; None if it is not one."""
    # Which of the two has it depends on the kind of variable. On a distributed variable itself it is not callable.
    if type(variable) is PlainVariable and not _may_be_component(variable):
        return None
    for owner in (variable, getattr(variable, "_handle", None)):
        whole = getattr(owner, "_distributed_container", None)
        if callable(whole):
            return whole()
    return None


def _may_be_component(variable: Any) -> bool:
    """Return whether a variable may be a component of another one; faster than to look for the attribute in vain."""
    return "_distributed_container" in vars(variable) or "_distributed_container" in attributes_of(variable._handle)


def whole_behind(handle: Tensor) -> Any | None:
    """Return the distributed variable that a handle is a part of; None if there is none."""
    whole = getattr(handle, "_distributed_container", None)
    return whole() if callable(whole) else None


def traced(function: _Function) -> _Function:
    """Return a `tf.function` for a single use, without the warning about frequent retracing."""
    compiled = tf.function(function, autograph=False)
    compiled._omit_frequent_tracing_warning = True
    return compiled


def concrete(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Return a function that was traced once, for arguments of these types."""
    return tf.function(function, autograph=False).get_concrete_function(*arguments)


def seed_setting() -> tuple[dict[str, Any], str]:
    """Return where the global seed of random ops is kept: a namespace, and a name there."""
    return vars(context.context()), "_seed"


def graph_here() -> Any:
    """Return the graph being built; None in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def next_id() -> int:
    """Return a number greater than the identity of every existing tensor and smaller than any later one."""
    return pywrap_tfe.TFE_Py_UID()


def op_def(op: str) -> Any | None:
    """Return the definition of `op`; None if it is the name of a function."""
    return op_def_registry.get(op)


_written: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()


def written_inputs(function: Any) -> tuple[int, ...]:
    """Return the indices of a concrete function's inputs that are resources it may write."""
    found = _written.get(function)
    if found is None:
        graph = function._func_graph
        read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
        resources = (index for index, tensor in enumerate(graph.inputs) if tensor.dtype == tf.resource)
        found = _written[function] = tuple(index for index in resources if index not in read_only)
    return found


_tokens: WeakKeyDictionary[Any, tuple[bytes, ...]] = WeakKeyDictionary()


def python_tokens(function: Any) -> tuple[bytes, ...]:
    """Return the tokens of the `tf.py_function`s in a concrete function and in the functions it calls."""
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
    """Return the name of a resource: two handles of the same name are one variable."""
    return repr(handle)


def op_list(names: Sequence[str]) -> bytes:
    """Return the definitions of ops as a serialized `OpList`."""
    return op_def_pb2.OpList(op=[op_def_registry.get(name) for name in names]).SerializeToString(deterministic=True)


def run(op: str, inputs: Sequence[Tensor], attrs: tuple[Any, ...], num_outputs: int) -> list[Tensor]:
    """Run `op` by name; open stock tapes record it."""
    if not tf.executing_eagerly():
        return _add_to_graph(op, inputs, attrs)
    outputs = execute.execute(op, num_outputs, list(inputs), attrs, context.context())
    if execute.must_record_gradient():
        execute.record_gradient(op, list(inputs), attrs, outputs)
    return outputs or []


def _add_to_graph(op: str, inputs: Sequence[Tensor], attrs: tuple[Any, ...]) -> list[Tensor]:
    definition, rest = op_def_registry.get(op), list(inputs)
    values = dict(zip(attrs[::2], attrs[1::2], strict=True))
    inferred: set[str] = set()
    arguments: dict[str, Any] = {}
    for arg in definition.input_arg:
        count = values[arg.number_attr] if arg.number_attr else 1
        count = len(values[arg.type_list_attr]) if arg.type_list_attr else count
        single = not (arg.number_attr or arg.type_list_attr)
        arguments[arg.name] = rest[0] if single else rest[:count]
        del rest[:count]
        inferred.update((arg.type_attr, arg.number_attr, arg.type_list_attr))
    explicit = {name: value for name, value in values.items() if name not in inferred}
    made = op_def_library.apply_op(op, **arguments, **explicit)
    if isinstance(made, tf.Operation):
        return []
    return list(made) if isinstance(made, (list, tuple)) else [made]


def stock_tape_listens() -> bool:
    """Return whether a stock tape is open on this thread."""
    return execute.must_record_gradient()


def accumulating() -> bool:
    """Return whether a forward accumulator is open on this thread."""
    return execute.must_record_gradient() and bool(pywrap_tfe.TFE_Py_PackJVPs([])[0])


def accumulates_only(tensors: Sequence[Tensor]) -> bool:
    """Return whether forward accumulators are open, but no stock tape that watches any of `tensors`."""
    return accumulating() and not record.should_record_backprop(list(tensors))


def record_on_stock_tapes(name: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], backward: Callable) -> None:
    """Record a backward function from `outputs` to `inputs` on stock tapes and forward accumulators."""
    pywrap_tfe.TFE_Py_TapeSetRecordOperation(name, list(outputs), list(inputs), backward, None)


def pass_tangents(tensor: Tensor, copy: Tensor) -> None:
    """Make forward accumulators use the tangents of `tensor` for `copy` too."""
    indices, tangents = pywrap_tfe.TFE_Py_PackJVPs([tensor])
    if tangents:
        # Not the tangents of tangents, which are known already: recording them twice would add them up.
        own = tuple(tuple(pair for pair in pairs if pair[0] == 0) for pairs in indices)
        outputs, inputs = [copy, *tangents], [tensor, *tangents]
        record.record_operation_forwardprop_only("tangents", outputs, inputs, None, own)


def registered_rule(op: str) -> Callable | None:
    """Return TensorFlow's gradient function; None if `op` is declared to have none.

    Raises:
      LookupError: If nothing is registered for `op`.
    """
    return ops.gradient_registry.lookup(op)


def apply_rule(rule: Callable[..., Any], operation: Any, grads: Sequence[Any], skip: tuple[int, ...] | None) -> Any:
    """Apply a gradient function to an operation of a graph; `skip` are the inputs that need no gradient.

    Stock tapes pass them on an imitation of the operation. Rules of loops need the operation itself.
    """
    operation.skip_input_indices = skip
    try:
        return rule(operation, *grads)
    finally:
        del operation.skip_input_indices


def operation_rule(operation: Any) -> Callable | None:
    """Like `registered_rule`, for an operation of a graph, which may have its own gradient."""
    own = operation._gradient_function or "_gradient_op_type" in operation.node_def.attr
    if own or operation.type == "IdentityN":  # which may have been recomputed
        return ops.get_gradient_function(operation)
    return registered_rule(operation.type)  # the same, without the cost of an exception


def is_trainable(dtype: Any) -> bool:
    """Return whether gradients flow through `dtype`."""
    return backprop_util.IsTrainable(dtype)


# The numbers of the dtypes through which gradients flow.
TRAINABLE_DTYPES = frozenset(number for number in range(1, 24) if is_trainable(tf.as_dtype(number)))


def zeros(shape: Any, dtype: Any) -> Tensor:
    """Return zeros of any numeric dtype: `tf.zeros` has no kernel for dtypes of eight bits or fewer."""
    kind = tf.as_dtype(dtype)
    if is_trainable(kind) or kind in _ORDINARY:
        return tf.zeros(shape, kind)
    sizes = tf.get_static_value(tf.convert_to_tensor(shape, tf.int32)) if isinstance(shape, tf.Tensor) else shape
    if sizes is None or None in list(sizes):
        return tf.cast(tf.zeros(shape), kind)
    return tf.constant(np.zeros([int(size) for size in sizes], kind.as_numpy_dtype), kind)


def aggregate(gradients: Sequence[Any]) -> Any:
    """Add gradients as the stock tape does: dense ones with one AddN, sparse ones by concatenation."""
    if all(isinstance(gradient, tf.Tensor) for gradient in gradients):
        return tf.raw_ops.AddN(inputs=list(gradients))
    return backprop_util.AggregateIndexedSlicesGradients(list(gradients))
