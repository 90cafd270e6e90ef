"""Inspect composite tensors, handles, concrete functions and their graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.tf.after_replicas import after_replicas
from retrotape.tf.closures import values_in
from retrotape.tf.core import (
    EagerTensor,
    StockTape,
    atomic_function,
    auto_control_deps_utils,
    composite_tensor_gradient,
    concrete_function,
    context,
    func_graph,
    handle_data_util,
    is_recompute,
    is_trainable,
    ops,
    pywrap_tfe,
    resource_variable_ops,
    tf,
)
from retrotape.tf.hooks import FunctionCall


def components(values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors that represent ragged and sparse values in a derivative."""
    return composite_tensor_gradient.get_flat_tensors_for_gradients(list(values))


def recompose(values: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """Undo `components`: pack gradients in the structure of the values."""
    return composite_tensor_gradient.replace_flat_tensors_for_gradients(list(values), list(gradients))


def handle_type(handle: Tensor) -> tuple[int, tuple[int | None, ...] | None] | None:
    """Return the dtype and shape of the variable behind a handle; None for other resources."""
    eager = isinstance(handle, EagerTensor)
    data = handle._handle_data if eager else handle_data_util.get_resource_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    held = data.shape_and_type[0]
    shape = None if held.shape.unknown_rank else tuple(d.size if d.size >= 0 else None for d in held.shape.dim)
    return held.dtype, shape


def written_by(operation: Any) -> tuple[int, ...]:
    """Return the indices of a graph operation's inputs that are resources it may write."""
    read_only = set(auto_control_deps_utils._get_read_only_resource_input_indices_op(operation))
    return tuple(
        index for index, tensor in enumerate(operation.inputs) if tensor.dtype == tf.resource and index not in read_only
    )


def captured_by(backward: Any) -> list[Tensor]:
    """Return what user code in the backward function of a call captures, besides inputs and outputs of the call.

    These are tensors and handles of variables in the closure of a `tf.custom_gradient` inside the function.
    """
    functions = [value for value in values_in(backward, 1) if isinstance(value, concrete_function.ConcreteFunction)]
    found = {tensor._id: tensor for function in functions[:1] for tensor in function.captured_inputs}
    return [tensor for tensor in found.values() if isinstance(tensor, EagerTensor)]


def operations_within(function: Any) -> Iterator[str]:
    """Yield the type of every operation in a concrete function and in the functions it calls."""
    yield from _operations_in(function._func_graph.as_graph_def())


def custom_rules(function: Any) -> list[Any]:
    """Return the custom gradient functions of operations in a concrete function and in the functions it calls."""
    graph_def = function._func_graph.as_graph_def()
    nodes = [*graph_def.node, *(node for inner in graph_def.library.function for node in inner.node_def)]
    names = {node.attr["_gradient_op_type"].s.decode() for node in nodes if "_gradient_op_type" in node.attr}
    registered = set(ops.gradient_registry.list())  # those of a loaded function may be missing
    return [ops.gradient_registry.lookup(name) for name in sorted(names & registered)]


def is_recomputed(node: Any) -> bool:
    """Return whether a node of a function has the gradient of a `tf.recompute_grad`."""
    name = node.attr["_gradient_op_type"].s.decode()
    return name in ops.gradient_registry.list() and is_recompute(ops.gradient_registry.lookup(name))


def is_compiled(function: Any) -> bool:
    """Return whether a concrete function is compiled with XLA."""
    attrs = function_def(function_name(function)).attr
    return "_XlaMustCompile" in attrs and attrs["_XlaMustCompile"].b


def has_compiled_loop_inside(function: Any) -> bool:
    """Return whether a concrete function calls one with a loop that is compiled with XLA."""
    called = function._func_graph.as_graph_def().library.function
    is_loop = any(node.op in ("While", "StatelessWhile") for each in called for node in each.node_def)
    return is_loop and any("_XlaMustCompile" in each.attr and each.attr["_XlaMustCompile"].b for each in called)


def operations_called(operation: Any) -> Iterator[str]:
    """Yield the type of every operation in the function that a graph operation calls."""
    graph = inner_graph(operation.graph, operation.get_attr("f").name)
    if graph is not None:
        yield from _operations_in(graph.as_graph_def())


def _operations_in(graph_def: Any) -> Iterator[str]:
    for node in graph_def.node:
        yield node.op
    for inner in graph_def.library.function:
        for node in inner.node_def:
            yield node.op


def operations_of(name: str) -> Iterator[str]:
    """Yield the type of every operation in a function that is registered with the runtime, and in those it calls."""
    pending, seen = [name], set[str]()
    while pending:
        name = pending.pop()
        if name in seen or not context.context().has_function(name):
            continue
        seen.add(name)
        for node in function_def(name).node_def:
            yield node.op
            pending += [node.op, *(attr.func.name for attr in node.attr.values() if attr.HasField("func"))]


def function_name(function: Any) -> str:
    """Return the runtime name of a concrete function."""
    return function._inference_function.name.decode()


def structured(function: Any, results: Sequence[Tensor]) -> Any:
    """Pack the results of a concrete function in the structure that it returns."""
    return function.function_type.pack_output(list(results))


def call_flat(function: Any, arguments: Sequence[Tensor], captures: Sequence[Tensor]) -> Any:
    """Call a concrete function with flat arguments and the given captures."""
    return function._call_flat(list(arguments), list(captures))


def graph_of(function: Any) -> Any:
    """Return the graph that a concrete function was traced into."""
    return function._func_graph


def inner_graph(graph: Any, name: str) -> Any:
    """Return the graph of a function called by operations of `graph`; None if it was not kept."""
    if graph is None or not graph._is_function(name):
        return None
    return getattr(graph._get_function(name), "graph", None)


class WithSides:
    """The forward function of a differentiated call, which returns intermediate results too.

    A derivative taken inside the block starts from these.
    """

    def __init__(self, name: str, function: Any) -> None:
        self._inference_function = SimpleNamespace(name=name.encode())
        self._func_graph = graph_of(function)


class TracedRule(NamedTuple):
    """The gradient function of one operation, as a function of output gradients and of the graph tensors it reads."""

    function: Any
    captures: list[Tensor]  # of the graph
    constants: list[Tensor]
    connected: list[bool]  # which inputs have a gradient

    def run(self, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the connected inputs."""
        return list(tf.nest.flatten(self.function._call_flat(list(arguments), self.constants)))


def trace_rule(graph: Any, operation: Any, grads: Sequence[Tensor]) -> TracedRule:
    """Trace the gradient function registered for one operation of `graph`."""
    with graph.as_default():
        traced = func_graph.FuncGraph(f"rule_of_{operation.name}")
    rule = ops.get_gradient_function(operation)
    with ExitStack() as stack:
        stack.enter_context(traced.as_default())
        # A gradient that reduces over replicas, as in Keras' training step, has to run in its own replica context.
        for replica_context in [value for value in values_in(rule) if isinstance(value, tf.distribute.ReplicaContext)][
            :1
        ]:
            stack.enter_context(replica_context)
        stack.enter_context(after_replicas(graph))
        seeds = [tf.compat.v1.placeholder(grad.dtype, grad.shape) for grad in grads]
        found = rule(operation, *seeds)
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        traced.outputs = [tf.convert_to_tensor(grad) for grad in found if grad is not None]
    pairs = list(zip(traced.external_captures, traced.internal_captures, strict=True))
    symbolic = [pair for pair in pairs if not isinstance(pair[0], EagerTensor)]
    eager = [pair for pair in pairs if isinstance(pair[0], EagerTensor)]
    traced.inputs = [*seeds, *(inner for _, inner in symbolic), *(inner for _, inner in eager)]
    traced.structured_outputs = traced.outputs
    atomic = atomic_function.from_func_graph(f"__inference_rule_{ops.uid()}", traced, {})
    return TracedRule(
        concrete_function.ConcreteFunction(atomic),
        [outer for outer, _ in symbolic],
        [outer for outer, _ in eager],
        [grad is not None for grad in found],
    )


def function_def(name: str) -> Any:
    """Return the definition of a function registered with the runtime."""
    return context.get_function_def(name)


def output_count(argument: Any, attrs: Any) -> int:
    """Return the number of tensors of one output argument of an op."""
    if argument.number_attr:
        return attrs[argument.number_attr].i
    return len(attrs[argument.type_list_attr].list.type) if argument.type_list_attr else 1


def attr_value(attr: Any) -> Any:
    """Return an attribute of a node in the form that executing an op by name takes."""
    kind = attr.WhichOneof("value")
    if kind == "shape":
        return _sizes(attr.shape)
    if kind == "list" and attr.list.shape:
        return [_sizes(shape) for shape in attr.list.shape]
    if kind == "list":
        return next((list(values) for _, values in attr.list.ListFields()), [])
    if kind == "func":
        return attr.func.name
    return None if kind is None else getattr(attr, kind)


def _sizes(proto: Any) -> list[int | None] | None:
    shape = tf.TensorShape(proto)
    return None if shape.rank is None else shape.as_list()


def access_variables(function: Any) -> None:
    """Notify tapes of the variables that a concrete function reads, as calling it does."""
    for variable in function._func_graph.variables:
        resource_variable_ops.variable_accessed(variable)


def output_types(function: Any) -> Sequence[Any]:
    """Return shape and dtype of each output. Not from the graph, to which TensorFlow adds outputs."""
    return function.function_type.flat_outputs


def gradient_function(function: Any) -> Any:
    """Return a concrete function from inputs and output gradients to input gradients.

    It recomputes the function, so it needs no values kept from the call. Its attribute `input_positions` has the
    positions of the inputs that its outputs are gradients of.
    """
    graph = func_graph.FuncGraph(f"gradient_of_{function.name}")
    with graph.as_default():
        inputs = [placeholder_like(tensor) for tensor in function._func_graph.inputs]
        trainable = [index for index, tensor in enumerate(inputs) if is_trainable(tensor)]
        with StockTape(watch_accessed_variables=False) as tape:
            tape.watch([inputs[index] for index in trainable])
            split = len(inputs) - len(function.captured_inputs)
            called = FunctionCall(function, inputs[:split], inputs[split:]).run()
            outputs = tf.nest.flatten(called, expand_composites=True)
        outputs = [tensor for tensor in outputs if tensor is not None]
        seeds = [placeholder_like(tensor) for tensor in outputs]
        wanted = [index for index, tensor in enumerate(outputs) if is_trainable(tensor)]
        gradients = tape.gradient(
            [outputs[index] for index in wanted],
            [inputs[index] for index in trainable],
            [seeds[index] for index in wanted],
        )
        found = [(index, grad) for index, grad in zip(trainable, gradients, strict=True) if grad is not None]
        graph.outputs = [tf.convert_to_tensor(grad) for _, grad in found]
    graph.inputs = [*inputs, *seeds, *graph.internal_captures]
    graph.structured_outputs = graph.outputs
    atomic = atomic_function.from_func_graph(f"__inference_gradient_{ops.uid()}", graph, {})
    result = concrete_function.ConcreteFunction(atomic)
    result.input_positions = tuple(index for index, _ in found)
    result.constants = list(graph.external_captures)
    return result


def differentiate_call(operation: Any, grads: Sequence[Any]) -> list[Any]:
    """Return the input gradients of a call in a graph, by calling the function again.

    If a tensor is passed twice, its first position gets the whole gradient.
    """
    function = concrete_function.ConcreteFunction(operation.graph._get_function(operation.get_attr("f").name))
    inputs = list(operation.inputs)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        for tensor in inputs:
            if is_trainable(tensor):
                pywrap_tfe.TFE_Py_TapeWatch(tape._tape._tape, tensor)
        outputs = tf.nest.flatten(FunctionCall(function, inputs, []).run(), expand_composites=True)
    pairs = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
    once = list({id(tensor): tensor for tensor in inputs}.values())
    found = tape.gradient([output for output, _ in pairs], once, [tf.convert_to_tensor(grad) for _, grad in pairs])
    by_input = {id(tensor): grad for tensor, grad in zip(once, found, strict=True)}
    return [by_input.pop(id(tensor), None) for tensor in inputs]


def placeholder_like(tensor: Tensor) -> Tensor:
    """Return a placeholder with the dtype and shape of `tensor`, which may be the handle of a variable."""
    placeholder = tf.compat.v1.placeholder(tensor.dtype, tensor.shape)
    handle_data_util.copy_handle_data(tensor, placeholder)
    return placeholder
