"""The ops by which the workers of a job communicate, as one worker has recorded them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape.errors import ShardMismatchError
from retrotape.ir._program import ALL_GATHER, ALL_REDUCE, BROADCAST, COLLECTIVES, Eqn, Program, TensorType


def replicas_of(eqn: Eqn) -> int:
    """Return how many replicas a collective op communicates between, on all workers together.

    >>> replicas_of(Eqn("all_reduce", (0,), (1,), (("reduction", b"SUM"), ("replicas", 2)), 0))
    2
    """
    found = dict(eqn.attrs)["replicas"]
    assert isinstance(found, int)
    return found


def has_own_attrs(eqn: Eqn) -> bool:
    """Return whether a collective op has the attributes that it should have, and no others."""
    attrs = dict(eqn.attrs)
    if eqn.op == ALL_REDUCE and attrs.pop("reduction", None) not in (b"SUM", b"MEAN"):
        return False
    axis = attrs.pop("axis", None) if eqn.op == ALL_GATHER else 0
    return type(axis) is int and axis >= 0 and attrs.keys() == {"replicas"} and type(attrs["replicas"]) is int


def can_return(eqn: Eqn, given: Sequence[TensorType], made: Sequence[TensorType]) -> bool:
    """Return whether a collective op can have results of these types, given the inputs of one worker."""
    if len(made) != 1:
        return False
    if eqn.op == BROADCAST:
        return len(given) < 2 and all(kind == made[0] for kind in given)
    if not 0 < len(given) < replicas_of(eqn):
        return False
    if eqn.op == ALL_REDUCE:
        return all(kind == made[0] for kind in given)
    axis = dict(eqn.attrs)["axis"]
    assert isinstance(axis, int)
    kinds = [*given, *made]
    if any(kind.dtype != made[0].dtype or kind.shape is None or axis >= len(kind.shape) for kind in kinds):
        return False
    return len({(*kind.shape[:axis], *kind.shape[axis + 1 :]) for kind in kinds if kind.shape is not None}) == 1


def meetings(programs: Sequence[Program]) -> list[list[int]]:
    """Return the equations of each worker's program at which all workers meet.

    Raises:
      ShardMismatchError: If the workers did not run the same collective ops in the same order.
    """
    found = [[at for at, eqn in enumerate(program.eqns) if eqn.op in COLLECTIVES] for program in programs]
    for worker, places in enumerate(found[1:], 1):
        for number, (left, right) in enumerate(zip(found[0], places, strict=False)):
            if _communicated(programs[0], left) != _communicated(programs[worker], right):
                here, there = _shown(programs[0], left), _shown(programs[worker], right)
                raise ShardMismatchError(f"collective op {number} is {here} on worker 0 and {there} on worker {worker}")
        if len(places) != len(found[0]):
            raise ShardMismatchError(
                f"worker 0 ran {len(found[0])} collective ops and worker {worker} ran {len(places)}",
                "Open and close the tape at the same place on every worker.",
            )
    return found


def _communicated(program: Program, index: int) -> Any:
    eqn = program.eqns[index]
    return eqn.op, eqn.attrs, program.types[eqn.outputs[0]]


def _shown(program: Program, index: int) -> str:
    eqn = program.eqns[index]
    return f"{eqn.op} of {program.types[eqn.outputs[0]]} (at {program.frame_of(eqn)})"
