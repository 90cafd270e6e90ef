"""The invariants of every program: single assignment, bound inputs, consistent tables."""

from __future__ import annotations

from retrotape.errors import MalformedProgramError
from retrotape.ir._program import LEAF, Program


def check(program: Program, since: int = 0, since_var: int = 0) -> None:
    """Raise unless `program` is well formed; `since` and `since_var` skip what was checked before.

    >>> from retrotape.ir import Eqn, TensorType
    >>> check(Program((TensorType(1, ()),), (0,), (Eqn("Neg", (0,), (0,), (), 0),), ()))
    Traceback (most recent call last):
    ...
    retrotape.errors.MalformedProgramError: Equation 0 (Neg) reads %0 before it is defined.
    """
    types, producers = program.types, program.producers
    if len(types) != len(producers):
        raise MalformedProgramError(f"{len(types)} types for {len(producers)} vars.")
    total = len(producers)
    defined: set[int] = set()
    for index in range(since, len(program.eqns)):
        eqn = program.eqns[index]
        for var in eqn.inputs:
            if not 0 <= var < total:
                raise MalformedProgramError(f"Equation {index} ({eqn.op}) reads %{var}, which does not exist.")
            if producers[var] >= index:
                raise MalformedProgramError(f"Equation {index} ({eqn.op}) reads %{var} before it is defined.")
        if len(set(eqn.outputs)) != len(eqn.outputs):
            raise MalformedProgramError(f"Equation {index} ({eqn.op}) defines a var twice: {_names(eqn.outputs)}.")
        for var in eqn.outputs:
            if not 0 <= var < total or producers[var] != index:
                raise MalformedProgramError(f"Equation {index} ({eqn.op}) defines %{var}, which is not its own.")
        defined.update(eqn.outputs)
    for var in range(since_var, total):
        producer = producers[var]
        if producer == LEAF:
            continue
        # `defined` avoids searching an equation with many outputs once for each of them.
        if var not in defined and not (0 <= producer < since and var in program.eqns[producer].outputs):
            raise MalformedProgramError(f"%{var} claims equation {producer} as its producer, which it is not.")


def _names(variables: tuple[int, ...]) -> str:
    return ", ".join(f"%{var}" for var in variables)
