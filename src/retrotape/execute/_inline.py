"""Inlines a call: runs its body again op by op, and records it.

A call is one equation, and TensorFlow's derivative of it does not cover the variables that it assigned. Where a query
needs those, the body runs again on the recorded inputs, with variables set to their values at the time of the call, and
the walk visits the equations recorded by this run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrotape._types import Handle, Place, Tensor
from retrotape.errors import OpaqueUpdateError
from retrotape.execute._past import variable_with
from retrotape.ir import Body, Eqn
from retrotape.record import Trace, current_stack, function_traits, run_op_by_op
from retrotape.tf import core, functions, hooks
from retrotape.tf.core import identity_of, tf
from retrotape.tf.scopes import setting


def inline(
    trace: Trace,
    eqn: Eqn,
    call: hooks.FunctionCall,
    values: Callable[[int], Tensor],
    sides: bool = False,
) -> Body:
    """Run the body of a call again, once for all queries.

    With `sides`, the outputs include the intermediates that the call kept for its own derivative.
    """
    # A cached run has no tangents for an accumulator that is open now.
    known = None if core.accumulating() else trace.facts.bodies.get((eqn.outputs, sides))
    if known is not None:
        return known
    traits = function_traits(call.function)
    if not traits.deterministic:
        history = trace.facts.history_of.get(eqn.outputs[-1])
        name = "state" if history is None else trace.name_of(history)
        where = str(trace.program.frame_of(eqn))
        raise OpaqueUpdateError(f"{eqn.op}, which contains random draws or Python code,", name, where)
    trace.flush()
    inputs = eqn.inputs[: len(call.arguments) + len(call.captures)]
    operands, begin = operands_of(trace, call.function, inputs, values), len(trace.program.eqns)
    trace.tensors.capture(operands)  # the body is cached, and with it what its custom gradients capture
    histories = [trace.facts.history_of.get(var) for var in inputs]
    held = held_inputs(trace, call.function, inputs)
    handles = [
        None if not inside else True if history is None else history.handle
        for inside, history in zip(held, histories, strict=True)
    ]
    with current_stack().also(trace):
        place, whole = trace.frames.place(eqn.frame), eqn.op if sides else None
        results, given, variables = _run_again(call.function, operands, handles, place, whole)
    found = [trace.var_of(tensor) for tensor in results]
    for position in traits.writes:
        written = trace.facts.histories.get(identity_of(given[position]))
        if written is not None:
            found.append(written.current)
    trace.flush()
    originals = call.arguments + call.captures
    by_original = {
        identity_of(handle): variable.handle
        for handle, variable in zip(originals, variables, strict=False)
        if variable is not None
    }
    program = trace.program
    span, stand_ins = (begin, len(program.eqns)), [None if v is None else identity_of(v.handle) for v in variables]
    body = Body(tuple(found), span, variables, stand_ins, program.producers[eqn.outputs[0]], by_original)
    # Tangents belong to the accumulator that is open now, so this run is not cached.
    trace.add_body((body.outputs if core.accumulating() else eqn.outputs, sides), body)
    return body


def operands_of(trace: Trace, function: Any, inputs: Sequence[int], values: Callable[[int], Tensor]) -> list[Tensor]:
    """Return the inputs of a function. An uninitialized variable has no value: zeros stand in if it is not read."""
    asks = "VarIsInitializedOp" in functions.operations_within(function)
    fresh = frozenset() if asks else trace.facts.uninitialized
    types = trace.program.types
    return [tf.zeros(types[var].shape, types[var].dtype) if var in fresh else values(var) for var in inputs]


def held_inputs(trace: Trace, function: Any, inputs: Sequence[int | None]) -> list[bool]:
    """Return which inputs are recorded as values of variables, where the function takes their handles."""
    types, handles = trace.program.types, functions.graph_of(function).inputs
    return [
        handle.dtype == tf.resource and var is not None and types[var].dtype != tf.resource
        for handle, var in zip(handles, inputs, strict=False)
    ]


def run_function(
    trace: Trace, function: Any, operands: Sequence[Tensor], held: Sequence[bool], place: Place
) -> tuple[list[Tensor], list[Tensor]]:
    """Record a concrete function op by op, on `trace` alone; return its results and its arguments.

    Where `held`, an operand is the value of a variable, and the handle of a new variable with that value is passed.
    `place` is the line that called the function.
    """
    with current_stack().only(trace):
        handles = [True if inside else None for inside in held]
        results, given, _ = _run_again(function, operands, handles, place)
    trace.flush()
    return results, given


def _run_again(
    function: Any, operands: Sequence[Tensor], handles: Sequence[Handle], place: Place, name: str | None = None
) -> tuple[list[Tensor], list[Tensor], list[Any]]:
    variables = [
        None if handle is None else variable_with(operand, None if handle is True else handle)
        for operand, handle in zip(operands, handles, strict=True)
    ]
    given = [
        operand if variable is None else variable.handle for operand, variable in zip(operands, variables, strict=True)
    ]
    stack = current_stack()
    with setting(stack, place=place):
        called = name or functions.function_name(function)
        results = run_op_by_op(stack, called, given, functions.graph_of(function))
        stack.flush()
    return results, given, variables
