"""Looking inside a function that was called: its body, run again op by op as part of the recording.

A call is one equation, and TensorFlow's derivative of it says nothing of the variables that it assigned. Where a
question needs more than that, the body is run on the recorded inputs, with variables that hold what they held
at the time of the call, and the walk goes through the equations that this writes down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape.errors import OpaqueUpdateError
from retrotape.execute._past import variable_with
from retrotape.ir import Eqn
from retrotape.record import Recording, current_stack, function_traits, run_op_by_op
from retrotape.tf import core, functions, hooks
from retrotape.tf.core import tf
from retrotape.tf.scopes import setting

Tensor = Any


class Body(NamedTuple):
    """The equations that ran inside a call.

    Attributes:
      outputs: The vars that stand for what the call returned, and for what it left in variables.
      span: The equations, from the first to behind the last.
      variables: Stand-ins for the variables that it was given, which must live as long as the equations are looked at.
      call: The equation of the call.
      handles: By identity of a handle that it was given, the handle of the stand-in.
    """

    outputs: tuple[int, ...]
    span: tuple[int, int]
    variables: Sequence[Any]
    call: int
    handles: Mapping[int, Tensor]

    def pairs(self, recording: Recording, eqn: Eqn) -> list[tuple[int, int]]:
        """Return each output of the call with the var that stands for it inside."""
        versions = tuple(var for var in eqn.outputs if var in recording.cell_of)
        count = len(self.outputs) - len(versions)
        return list(zip((*eqn.outputs[:count], *versions), self.outputs, strict=True))

    def assigned(self, recording: Recording) -> list[Sequence[int]]:
        """Return, for each input of the call that is a variable, the values that it was given inside."""
        cells = [None if variable is None else recording.cells.get(variable.handle._id) for variable in self.variables]
        return [() if cell is None else tuple(cell.versions[1:]) for cell in cells]


def inline(
    recording: Recording,
    eqn: Eqn,
    call: hooks.FunctionCall,
    values: Callable[[int], Tensor],
    where: str,
    sides: bool = False,
) -> Body:
    """Run the body of a call again, once for all queries.

    With `sides` its outputs are also those that the call kept for its own derivative.
    """
    # What was computed before has no tangents for an accumulator that is open now.
    known = None if core.accumulating() else recording.inlined.get((eqn.outputs, sides))
    if known is not None:
        return known
    traits = function_traits(call.function)
    if not traits.deterministic:
        cell = recording.cell_of.get(eqn.outputs[-1])
        name = "state" if cell is None else recording.name_of(cell)
        raise OpaqueUpdateError(f"{eqn.op}, which contains random draws or Python code,", name, where)
    recording.settle()
    inputs = eqn.inputs[: len(call.arguments) + len(call.captures)]
    operands, begin = operands_of(recording, call.function, inputs, values), len(recording.builder.eqns)
    cells = [recording.cell_of.get(var) for var in inputs]
    held = held_inputs(recording, call.function, inputs)
    handles = [
        None if not inside else True if cell is None else cell.handle for inside, cell in zip(held, cells, strict=True)
    ]
    with current_stack().also(recording):
        place, whole = recording.frames.place(eqn.frame), eqn.op if sides else None
        results, given, variables = _run_again(call.function, operands, handles, place, whole)
    found = [recording.operand(tensor) for tensor in results]
    for position in traits.writes:
        cell = recording.cells.get(given[position]._id)
        if cell is not None:
            found.append(cell.current)
    recording.settle()
    span, originals = (begin, len(recording.builder.eqns)), call.arguments + call.captures
    stand_ins = {
        handle._id: variable.handle
        for handle, variable in zip(originals, variables, strict=False)
        if variable is not None
    }
    body = Body(tuple(found), span, variables, recording.builder.producers[eqn.outputs[0]], stand_ins)
    # What has tangents is for the accumulator that is open now, and found again by nobody.
    recording.inlined[body.outputs if core.accumulating() else eqn.outputs, sides] = body
    return body


def operands_of(
    recording: Recording, function: Any, inputs: Sequence[int], values: Callable[[int], Tensor]
) -> list[Tensor]:
    """Return what a function was given. What a new variable holds is nothing, and zeros do where that is not asked."""
    fresh: set[int] = set()
    if "VarIsInitializedOp" not in functions.operations_within(function):
        fresh = recording.uninitialized
    types = recording.builder.types
    return [tf.zeros(types[var].shape, types[var].dtype) if var in fresh else values(var) for var in inputs]


def held_inputs(recording: Recording, function: Any, inputs: Sequence[int | None]) -> list[bool]:
    """Say which inputs of a function are values of variables, of which it takes the handles."""
    types, handles = recording.builder.types, functions.graph_of(function).inputs
    return [
        handle.dtype == tf.resource and var is not None and types[var].dtype != tf.resource
        for handle, var in zip(handles, inputs, strict=False)
    ]


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
        stack.settle()
    return results, given, variables
