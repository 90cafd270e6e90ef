"""New seeds for draws that are computed from a seed which lies in a variable, as all draws of Keras are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from retrotape.ir import LEAF, slice_to
from retrotape.record import Recording, current_stack
from retrotape.tf import core
from retrotape.tf.core import tf

Tensor = Any


def new_seeds(recording: Recording) -> dict[int, Tensor]:
    """Return new values for the variables that seeds were read from, by var. A seed that was written down stays."""
    cells, builder = recording.cell_of, recording.builder
    seeds = set(_seeds(recording))
    used = {var for index in slice_to(builder, sorted(seeds)) for var in builder.eqns[index].inputs}
    found = {}
    for var in sorted(used | seeds):
        kind = builder.types[var]
        is_first = var in cells and cells[var].versions[0] == var
        if (
            is_first
            and builder.producers[var] == LEAF
            and tf.as_dtype(kind.dtype).is_integer
            and kind.shape is not None
        ):
            with current_stack().unheard():
                drawn = tf.random.uniform(kind.shape, maxval=2**31 - 1, dtype=tf.int32)
                found[var] = tf.cast(drawn, kind.dtype)
    return found


def _seeds(recording: Recording) -> Iterator[int]:
    for eqn in recording.builder.eqns:
        if eqn.op.startswith("Stateless"):
            names = [arg.name for arg in core.op_def(eqn.op).input_arg]  # type: ignore[union-attr]
            yield from (var for name, var in zip(names, eqn.inputs, strict=False) if name == "seed")
