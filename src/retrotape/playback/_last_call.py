"""The last call of a step as a trace: the recorded program on the values of that call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.errors import TapeUseError
from retrotape.playback._known import Call, Entry
from retrotape.playback._pure import RANDOM
from retrotape.record import Trace
from retrotape.tf.core import eager_dtype, identity_of, shape_of
from retrotape.tf.nests import TensorRef
from retrotape.transform import replay


def trace_of(call: Call, kept_state: bool) -> Trace:
    """Return the trace of a call that was played back.

    Raises:
      TapeUseError: If the values are not there any more.
    """
    entry = call.entry
    if not kept_state:
        raise TapeUseError(
            "What variables held before the last call was not kept. Use `rt.compile(step, keep_state=True)`."
        )
    drawn = [eqn.op for eqn in entry.trace.program.eqns if eqn.op in RANDOM]
    if drawn:
        raise TapeUseError(
            f"The last call ran {drawn[0]}, whose random numbers are not kept. Draw them by `keras.random` with a "
            "`SeedGenerator`, or by `tf.random.stateless_*`."
        )
    given = [*_inputs(entry, call.tensors), *_variables(call)]
    found = replay(entry.trace, given, resample=False, trust=True)  # what Python read was compared before it ran
    for identity, tensor in zip(entry.inputs, call.tensors, strict=True):
        _alias(found, identity, tensor)
    for identity, tensor in zip(entry.outputs, entry.tensors(call.values), strict=True):
        _alias(found, identity, tensor)
    return found


def _alias(trace: Trace, identity: int, tensor: Tensor) -> None:
    var = trace.tensors.get(identity)
    if var is not None:
        trace.tensors.alias(identity_of(tensor), var)


def _inputs(entry: Entry, tensors: Sequence[Tensor]) -> list[tuple[Any, Tensor]]:
    pairs = dict(zip(entry.inputs, tensors, strict=True))  # one tensor may be passed twice
    return [(TensorRef(one, eager_dtype(tensor), shape_of(tensor)), tensor) for one, tensor in pairs.items()]


def _variables(call: Call) -> list[tuple[Any, Tensor]]:
    trace, path = call.entry.trace, call.entry.path
    first = {identity_of(handle): var for var, handle in path.handles.items()}
    pairs = [(variable, first.get(key)) for key, variable in trace.variables.items()]
    return [(variable, call.values[var]) for variable, var in pairs if var is not None and var in call.values]
