"""Looking inside a function that was called: its body, run again op by op as part of the recording.

A call is one equation, and TensorFlow's derivative of it says nothing of the variables that it assigned. Where a
question needs more than that, the body is run on the recorded inputs, with variables that hold what they held
at the time of the call, and the walk goes through the equations that this writes down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from retrotape import _hooks, _tf, _tf_functions, _tf_tangents
from retrotape._tf import tf
from retrotape.errors import OpaqueUpdateError
from retrotape.ir import Eqn
from retrotape.record import Recording, current_stack, function_traits, is_moments

Tensor = Any


class _Step(NamedTuple):
    op: str
    spec: Any  # its NodeDef
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[Any, ...]


class _Body(NamedTuple):
    arguments: tuple[str, ...]
    steps: tuple[_Step, ...]
    results: tuple[str, ...]
    listed: tuple[str, ...]  # as the definition lists them


def inline(
    recording: Recording,
    eqn: Eqn,
    call: _hooks.FunctionCall,
    values: Callable[[int], Tensor],
    where: str,
    sides: bool = False,
) -> tuple[int, ...]:
    """Run the body of a call again and return the vars that stand for the equation's outputs.

    With `sides` also for those that the call kept for its own derivative.
    """
    traits = function_traits(call.function)
    if not traits.deterministic:
        cell = recording.cell_of.get(eqn.outputs[-1])
        name = "state" if cell is None else recording.name_of(cell)
        raise OpaqueUpdateError(f"{eqn.op}, which contains random draws or Python code,", name, where)
    inputs = eqn.inputs[: len(call.arguments) + len(call.captures)]
    operands = [values(var) for var in inputs]
    cells = [recording.cell_of.get(var) for var in inputs]
    handles = [None if cell is None else cell.handle for cell in cells]
    with current_stack().also(recording):
        place, whole = recording.frames.place(eqn.frame), eqn.op if sides else None
        results, given, variables = _run_again(call.function, operands, handles, place, whole)
    found = [recording.operand(tensor) for tensor in results]
    for position in traits.writes:
        cell = recording.cells.get(given[position]._id)
        if cell is not None:
            found.append(cell.current)
    keep = tuple(found)
    # What has tangents is for the accumulator that is open now, and found again by nobody.
    recording.inlined[keep if _tf.accumulating() else eqn.outputs, sides] = (keep, variables)
    return keep


def run_function(
    recording: Recording, function: Any, operands: Sequence[Tensor], held: Sequence[bool], place: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """Let `recording` alone hear a concrete function op by op; return its results and what it was given.

    Where `held`, an operand is what a variable held, and the handle of one that holds it is given. `place` is where the
    function was called.
    """
    with current_stack().only(recording):
        handles = [True if inside else None for inside in held]
        results, given, _ = _run_again(function, operands, handles, place)
    recording.settle()
    return results, given


def _run_again(
    function: Any, operands: Sequence[Tensor], handles: Sequence[Any], place: Any, name: str | None = None
) -> tuple[list[Tensor], list[Tensor], list[Any]]:
    variables = [
        None if handle is None else with_value(operand, None if handle is True else handle)
        for operand, handle in zip(operands, handles, strict=True)
    ]
    given = [
        operand if variable is None else variable.handle for operand, variable in zip(operands, variables, strict=True)
    ]
    stack = current_stack()
    before, stack.place = stack.place, place
    try:
        results = _run(name or _tf_functions.function_name(function), given, _tf_functions.graph_of(function))
        stack.settle()
    finally:
        stack.place = before
    return results, given, variables


def with_value(value: Tensor, original: Tensor | None = None) -> Any:
    """Return a variable that holds `value`, and of which every open recording knows that it does.

    `original` is the handle of the variable that had the value: accumulators may know of its tangent only.
    """
    stack = current_stack()
    with stack.unheard():
        variable = tf.Variable(value, trainable=False)
    stack.adopt(variable.handle, value)
    if _tf.stock_tape_listens():
        known = original is not None and _tf_tangents.tangents_of([original]) is not None
        _tf_tangents.link(variable.handle, original if known else value)
    return variable


def _run(name: str, given: Sequence[Tensor], graph: Any) -> list[Tensor]:
    """Run a function op by op and return its results; `graph` is where it was traced."""
    body, stack = _body(name), current_stack()
    operations = _operations_of(body, graph)
    env = dict(zip(body.arguments, given, strict=True))
    called = stack.place
    for number, step in enumerate(body.steps):
        inputs = [env[ref] for ref in step.inputs]
        stack.place = operations.get(step.spec.name, called)  # the line inside the function, where it is known
        custom = "_gradient_op_type" in step.spec.attr and step.op not in _CALLS
        with _tf.stop_stock_tapes() if custom else nullcontext():  # they are told how it goes back
            outputs = _run_step(step, inputs, graph)
        if step.op == "StopGradient" and _is_of_moments(step, body, operations.get(step.spec.name)):
            stack.note_moments(outputs[0])
            if _tf.accumulating():
                _tf.pass_tangents(inputs[0], outputs[0])
        if custom:
            _emit_custom(step, inputs, outputs, _Place(body, number, graph, env))
        env.update(zip(step.outputs, outputs, strict=False))
    stack.place = called
    return [env[ref] for ref in body.results]


_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def _run_step(step: _Step, inputs: list[Tensor], graph: Any) -> list[Tensor]:
    attr = step.spec.attr

    def run(name: str, given: list[Tensor]) -> list[Tensor]:
        return _run(name, given, _tf_functions.inner_graph(graph, name))

    match step.op:
        case "Const":
            return [tf.constant(tf.make_ndarray(attr["value"].tensor))]
        case "NoOp" | "Assert" | "PrintV2":
            return []
        case "PartitionedCall" | "StatefulPartitionedCall":
            return run(attr["f"].func.name, inputs)
        case "If" | "StatelessIf":
            chosen = "then_branch" if _truth(inputs[0]) else "else_branch"
            return run(attr[chosen].func.name, inputs[1:])
        case "Case" | "StatelessCase":
            branches = attr["branches"].list.func
            current_stack().note_choice(inputs[0])
            number = int(inputs[0])
            return run(branches[number if 0 <= number < len(branches) else -1].name, inputs[1:])
        case "While" | "StatelessWhile":
            while _truth(run(attr["cond"].func.name, inputs)[0]):
                inputs = run(attr["body"].func.name, inputs)
            return inputs
    if _tf.op_def(step.op) is None:
        return run(step.op, inputs)
    return _tf.run(step.op, inputs, step.attrs, len(step.outputs))


def _is_of_moments(step: _Step, body: _Body, operation: Any) -> bool:
    """Say whether `tf.nn.moments` stopped a gradient: by its lines, or where nobody knows them, by its use."""
    if operation is not None:
        return any(is_moments(line.filename, line.name) for line in operation.traceback)
    users = {other.op for other in body.steps if step.outputs[0] in other.inputs}
    return "moments" in step.spec.name.split("/") and users == {"SquaredDifference"}


class _Place(NamedTuple):
    """Where in a body a custom gradient stands, and what was computed there."""

    body: _Body
    number: int
    graph: Any
    env: dict[str, Tensor]


def _emit_custom(step: _Step, inputs: list[Tensor], outputs: list[Tensor], place: _Place) -> None:
    """Write down that a step goes back by the gradient that was registered for it alone.

    That gradient is code which looks at tensors of the traced graph. It is traced in turn, and run on what stands
    for those tensors here.
    """
    graph, env = place.graph, place.env
    if graph is None:
        raise OpaqueUpdateError(f"{step.op} with a custom gradient inside a nested function", "a value", step.spec.name)
    operations = _operations_of(place.body, graph)
    if not operations:
        raise OpaqueUpdateError("a custom gradient in a function whose graph has changed", "a value", graph.name)

    def back(*grads: Any) -> list[Any]:
        traced = _tf_functions.trace_rule(graph, operations[step.spec.name], grads)
        seen = [env[_reference(place.body, operations, tensor)] for tensor in traced.captures]
        found = iter(traced.run([*grads, *seen]))
        return [next(found) if there else None for there in traced.connected]

    current_stack().emit(f"gradient of {step.spec.name}", outputs, inputs, back)
    _tf.tell_stock_tapes("CustomGradient", outputs, inputs, back)


def _operations_of(body: _Body, graph: Any) -> dict[str, Any]:
    """Return the operation behind each step: TensorFlow renames some in a definition, but keeps their order.

    Nothing is returned where the graph is not that of the definition, or not there any more.
    """
    if graph is None:
        return {}
    inputs = {tensor.op for tensor in graph.inputs}
    traced = [operation for operation in graph.get_operations() if operation not in inputs][: len(body.listed)]
    kinds = {step.spec.name: step.op for step in body.steps}
    if [kinds[name] for name in body.listed] != [operation.type for operation in traced]:
        return {}
    return dict(zip(body.listed, traced, strict=True))


def _reference(body: _Body, operations: dict[str, Any], tensor: Tensor) -> str:
    """Return the reference under which a body knows a tensor of its graph."""
    for argument, placeholder in zip(body.arguments, tensor.graph.inputs, strict=False):
        if placeholder is tensor:
            return argument
    name = next(name for name, operation in operations.items() if operation is tensor.op)
    step = next(step for step in body.steps if step.spec.name == name)
    return step.outputs[tensor.value_index]


def _truth(value: Tensor) -> bool:
    current_stack().note_choice(value)
    return bool(value) if value.shape.rank == 0 else bool(tf.size(value) > 0)


def _body(name: str) -> _Body:
    definition = _tf_functions.function_def(name)
    arguments = tuple(argument.name for argument in definition.signature.input_arg)
    steps = tuple(_step(spec) for spec in _in_order(definition, set(arguments)))
    results = tuple(definition.ret[result.name] for result in definition.signature.output_arg)
    return _Body(arguments, steps, results, tuple(spec.name for spec in definition.node_def))


def _in_order(definition: Any, done: set[str]) -> list[Any]:
    """Return the nodes in an order in which each follows what it waits for, control dependencies too."""
    pending = {spec.name: spec for spec in definition.node_def}
    ordered = []
    for first in list(pending):
        path = [first]
        while path:
            spec = pending.get(path[-1])
            if spec is None:
                path.pop()
                continue
            waiting = (ref.lstrip("^").split(":")[0] for ref in spec.input)
            next_one = next((name for name in waiting if name in pending and name != spec.name), None)
            if next_one is None:
                ordered.append(pending.pop(path.pop()))
            else:
                path.append(next_one)
    return ordered


def _step(spec: Any) -> _Step:
    inputs = tuple(ref for ref in spec.input if not ref.startswith("^"))
    definition = _tf.op_def(spec.op)
    if definition is None:
        results = _tf_functions.function_def(spec.op).signature.output_arg
        return _Step(spec.op, spec, inputs, tuple(f"{spec.name}:{result.name}:0" for result in results), ())
    outputs = tuple(
        f"{spec.name}:{arg.name}:{position}"
        for arg in definition.output_arg
        for position in range(_tf_functions.output_count(arg, spec.attr))
    )
    attrs = tuple(
        part
        for attr in definition.attr
        if attr.name in spec.attr
        for part in (attr.name, _tf_functions.attr_value(spec.attr[attr.name]))
    )
    return _Step(spec.op, spec, inputs, outputs, attrs)
