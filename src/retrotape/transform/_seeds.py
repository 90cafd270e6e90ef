"""New seeds for random ops whose seed is in a variable, as those of Keras are."""

from __future__ import annotations

from collections.abc import Iterator

from retrotape._types import Tensor
from retrotape.ir import LEAF, slice_to
from retrotape.record import Trace, current_stack
from retrotape.tf import core
from retrotape.tf.core import tf


def new_seeds(trace: Trace) -> dict[int, Tensor]:
    """Return new values, by var, for the variables that seeds were read from. Constant seeds stay."""
    histories, program = trace.facts.history_of, trace.program
    seeds = set(_seeds(trace))
    used = {var for index in slice_to(program, sorted(seeds)) for var in program.eqns[index].inputs}
    found = {}
    for var in sorted(used | seeds):
        kind = program.types[var]
        is_first = var in histories and histories[var].versions[0] == var
        if (
            is_first
            and program.producers[var] == LEAF
            and tf.as_dtype(kind.dtype).is_integer
            and kind.shape is not None
        ):
            with current_stack().unrecorded():
                drawn = tf.random.uniform(kind.shape, maxval=2**31 - 1, dtype=tf.int32)
                found[var] = tf.cast(drawn, kind.dtype)
    return found


def _seeds(trace: Trace) -> Iterator[int]:
    for eqn in trace.program.eqns:
        if eqn.op.startswith("Stateless"):
            names = [arg.name for arg in core.op_def(eqn.op).input_arg]  # type: ignore[union-attr]
            yield from (var for name, var in zip(names, eqn.inputs, strict=False) if name == "seed")
