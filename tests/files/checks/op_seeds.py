"""Honest calls of ops, of which hostile cases are changes.

Small programs are recorded, with first and second derivatives, and every op that ran is one honest call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import retrotape as rt
from files.checks import op_programs
from retrotape.errors import RetrotapeError
from retrotape.execute import Values
from retrotape.ir import DTYPE_NUMBERS, DType
from retrotape.record import default_attrs
from retrotape.tf import core

RESOURCE = DTYPE_NUMBERS["resource"]
PER_OP = 6
_rng = np.random.default_rng(7)


class Seed(NamedTuple):
    """A call that TensorFlow takes: attributes by name, and values of the inputs; None stands for a list."""

    attrs: dict[str, Any]
    values: list[Any]


def collect() -> dict[str, list[Seed]]:
    """Return honest calls by op."""
    found: dict[str, list[Seed]] = {}
    for programs, sources in op_programs.programs():
        for program in programs:
            _record(program, sources, found)
    return found


def of_update(op: str) -> Seed:
    """Return an honest call of an op that reads or writes a variable, by the names of what it takes."""
    definition = core.op_def(op)
    names = [arg.name for arg in definition.input_arg]
    by_place, rows = "ScatterNd" in op or op == "ResourceGatherNd", "indices" in names
    values: list[Any] = []
    for arg in definition.input_arg:
        if arg.name == "indices":
            values.append(np.array([[0], [2]] if by_place else [0, 2], np.int32))
        elif arg.name in ("begin", "end", "strides"):
            values.append(np.array({"begin": [0, 0], "end": [2, 2], "strides": [1, 1]}[arg.name], np.int32))
        elif arg.name in ("grad", "delta", "updates", "value") or arg.type == RESOURCE:
            part = (rows or op == "ResourceStridedSliceAssign") and arg.type != RESOURCE
            values.append(_rng.random((2 if part else 3, 2)).astype(np.float32))
        else:
            values.append(np.float32(0.1))
    types = {
        attr.name: DType(1 if attr.name in ("T", "dtype") else 3) for attr in definition.attr if attr.type == "type"
    }
    values = values[1:] if op == "AssignVariableOp" else values
    return Seed({**dict(default_attrs(op)), **types}, values)


def _record(program: Callable[[Any], Any], sources: Any, found: dict[str, list[Seed]]) -> None:
    with rt.Tape(keep="all") as tape, core.StockTape(persistent=True) as outer:
        outer.watch(sources)
        with core.StockTape() as inner:
            inner.watch(sources)
            made = program(sources)
        try:
            first = [grad for grad in inner.gradient(made, sources) if grad is not None]
            if first:
                outer.gradient([tf.convert_to_tensor(grad) for grad in first], sources)
        except (LookupError, NotImplementedError, ValueError, TypeError):
            first = []  # there is none
    trace = tape._session.trace
    trace.flush()
    look_up = Values(trace)
    for eqn in trace.program.eqns:
        seeds = found.setdefault(eqn.op, [])
        if len(seeds) >= PER_OP or core.op_def(eqn.op) is None:
            continue
        try:
            tensors = [look_up(var) for var in eqn.inputs]
        except RetrotapeError:
            continue
        values = [None if t.dtype == tf.variant else t.numpy() for t in tensors if t.dtype != tf.resource]
        if len(values) == len(tensors):
            seeds.append(Seed({**dict(default_attrs(eqn.op)), **dict(eqn.attrs)}, values))
