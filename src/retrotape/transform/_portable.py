"""Makes a trace portable: free of calls and of backward functions that exist only in this process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from retrotape._types import Tensor
from retrotape.errors import NotPersistableError, RetrotapeError
from retrotape.execute import DEEPEST, PastVariables, Values, cotangent_tensors, custom_name
from retrotape.ir import BackwardFunction, Facts, FunctionProgram, GrowingFacts, HostRead, reached_from, slice_to
from retrotape.record import Recorder, Trace, current_stack
from retrotape.rules import allowed
from retrotape.tf import functions
from retrotape.tf.core import tf
from retrotape.tf.hooks import variables_as
from retrotape.transform._flatten import Flattener


def portable(trace: Trace, freeze: Collection[str] = ()) -> Trace:
    """Return a trace that depends on nothing in this process: no calls, and backward functions as programs.

    Functions and custom gradients named in `freeze` are replaced by their outputs. A trace that is already portable is
    returned unchanged: copied by the order of its equations, replicas that share a variable would read what another
    one has assigned.
    """
    backward = trace.facts.backward_functions.values()
    if not trace.facts.calls and all(isinstance(b.function, FunctionProgram) for b in backward):
        return trace
    with current_stack().unrecorded():  # open tapes must not record these ops
        return _flat_data(trace, 0, freeze)


def runs_user_code(trace: Trace) -> bool:
    """Return whether `portable` calls Python code: the backward functions of custom gradients, also inside calls."""
    facts = trace.facts
    for index, back in facts.backward_functions.items():
        if index not in facts.calls and not isinstance(back.function, FunctionProgram):
            return True
    called = {id(call.function): call.function for call in facts.calls.values()}
    return any(functions.custom_rules(function) for function in called.values())


def _flat_data(trace: Trace, depth: int, freeze: Collection[str] = ()) -> Trace:
    """Return a trace without calls, whose backward functions are programs."""
    flattener = Flattener(trace, freeze)
    flat, facts = flattener.flatten(), flattener.facts
    for index, back in list(facts.backward_functions.items()):
        if isinstance(back.function, FunctionProgram):
            continue
        if depth > DEEPEST or custom_name(flat.program.eqns[index]) in freeze:
            del facts.backward_functions[index]
            continue
        facts.backward_functions[index] = _as_data(flat, facts, index, back, depth)
    return flat


def _as_data(trace: Trace, facts: GrowingFacts, index: int, back: BackwardFunction, depth: int) -> BackwardFunction:
    """Return a backward function as a program, given its trace and the facts of that trace."""
    inner, cotangents, results = _record_backward(trace, index, back)
    kinds = [trace.program.types[var] for var in back.inputs]
    kept = [
        [] if result is None else cotangent_tensors(result, kind) for result, kind in zip(results, kinds, strict=True)
    ]
    for tensors in kept:
        for tensor in tensors:
            inner.var_of(tensor)  # a cotangent that is returned unchanged was used by no op
    flat = _flat_data(inner, depth + 1)
    refused = sorted({eqn.op for eqn in flat.program.eqns} - allowed())
    if refused:
        reason = f"its backward function runs {', '.join(refused)}, which a file may not contain"
        raise _not_persistable(trace, index, reason, "do that outside the backward function")
    flowing = [flat.var_of(cotangent) for cotangent in cotangents]
    outside = _outside(trace, flat)
    for read in _host_reads(trace, index, flat, flowing, outside):
        facts.host_reads.append(read)
    outcome = tuple(tuple(flat.var_of(tensor) for tensor in tensors) for tensors in kept)
    captured = sorted(set(flat.program.leaves()) - set(flowing))
    outer = tuple(outside[var] if var in outside else trace.var_of(flat.value(var)) for var in captured)
    program = replace(flat.snapshot(), facts=Facts(backward_functions=flat.facts.backward_functions))
    function = FunctionProgram(program, tuple(flowing), tuple(captured), outcome)
    return BackwardFunction(function, back.inputs, back.outputs, outer)


def _record_backward(trace: Trace, index: int, back: BackwardFunction) -> tuple[Trace, list[Tensor], list[Any]]:
    """Run a backward function as of the time of the call; return its trace, its cotangents and its results."""
    values, types, inner = Values(trace), trace.program.types, Recorder()
    with current_stack().only(inner):
        with current_stack().unrecorded():
            cotangents = [tf.ones(types[var].shape, types[var].dtype) for var in back.outputs]
        try:
            with variables_as(PastVariables(trace, index, values)):
                found = back.function(*cotangents)
        except RetrotapeError:
            raise
        except Exception as error:
            reason = f"its backward function fails with {type(error).__name__}: {error}"
            raise _not_persistable(trace, index, reason, "use it outside a tf.function") from error
    inner.flush()
    for cotangent in cotangents:
        inner.var_of(cotangent)
    return inner, cotangents, list(found) if isinstance(found, (list, tuple)) else [found]


def _outside(trace: Trace, inner: Trace) -> dict[int, int]:
    """Return a map from vars of a backward function to vars of the trace that it was made in."""
    found: dict[int, int] = {}
    for identity, var in inner.tensors.items():
        outer = trace.tensors.get(identity)
        if outer is not None:
            found.setdefault(var, outer)
    return found


_SIZES = frozenset(("Shape", "ShapeN", "Size", "Rank"))


def _host_reads(
    trace: Trace, index: int, inner: Trace, cotangents: Sequence[int], outside: Mapping[int, int]
) -> Iterator[HostRead]:
    """Yield the recorded values that Python code in a backward function reads.

    A program has only one branch: on other values the function might take another. It must not read cotangents at all,
    which differ with every query.
    """
    eqns = inner.program.eqns
    sizes = {var for eqn in eqns if eqn.op in _SIZES for var in eqn.outputs}  # sizes of cotangents never change
    _, reached = reached_from(inner.program, cotangents, range(len(eqns)), (sizes,))
    for identity, _, frame, method, _ in inner.facts.host_reads:
        var = inner.tensors.get(identity)
        if var in reached:
            reason = "its backward function branches on the value of a gradient"
            raise _not_persistable(trace, index, reason, "write that with `tf.where`")
        if var is None:  # it is only read by Python, and no op uses it
            read = {trace.tensors.get(identity)}
        else:
            used = {var, *(used for at in slice_to(inner.program, [var]) for used in eqns[at].inputs)}
            read = {outside.get(leaf) for leaf in used}
        place = trace.frames.number(inner.frames.place(frame))
        for outer in sorted(found for found in read if found is not None):
            yield HostRead(trace.tensors.new_identity(outer), trace.facts.times[index], place, method)


def _not_persistable(trace: Trace, index: int, reason: str, remedy: str) -> NotPersistableError:
    eqn = trace.program.eqns[index]
    where = str(trace.program.frame_of(eqn))
    return NotPersistableError(index, custom_name(eqn), where, reason, remedy)
