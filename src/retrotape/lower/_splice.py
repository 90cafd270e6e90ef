"""Put the recomputation of values into a computation that takes them."""

from __future__ import annotations

from retrotape.ir import CUSTOM, LEAF, Eqn, Program, slice_to
from retrotape.lower._observed import Computation
from retrotape.record import Kind, Trace, traits


def with_recomputed(computation: Computation, trace: Trace) -> Computation:
    """Return the computation as one that takes only values that the trace keeps, and recomputes the others.

    It is returned as it is if some value cannot be recomputed by the same ops: that one is then recomputed op by op.
    """
    program, kept = trace.program, trace.values
    missing = [var for _, var in computation.feeds if var not in kept]
    indices = slice_to(program, missing, kept)
    eqns = [program.eqns[index] for index in indices]
    made = {var for eqn in eqns for var in eqn.outputs}
    used = {var for eqn in eqns for var in eqn.inputs} - made
    if not missing or not made.issuperset(missing) or any(var not in kept for var in used):
        return computation
    if not all(map(_is_repeatable, eqns)):
        return computation
    return _spliced(computation, program, eqns)


def _is_repeatable(eqn: Eqn) -> bool:
    features = traits(eqn.op)
    return eqn.op == CUSTOM or (features.kind is Kind.PLAIN and features.replayable)


def _spliced(computation: Computation, program: Program, eqns: list[Eqn]) -> Computation:
    numbers = {var: leaf for leaf, var in computation.feeds}  # by var of the trace
    types, producers = list(computation.types), list(computation.producers)

    def number(var: int) -> int:
        if var not in numbers:
            numbers[var] = len(types)
            types.append(program.types[var])
            producers.append(LEAF)
        return numbers[var]

    renamed = [
        eqn._replace(inputs=tuple(map(number, eqn.inputs)), outputs=tuple(map(number, eqn.outputs)), frame=0)
        for eqn in eqns
    ]
    made = {var for eqn in eqns for var in eqn.outputs}
    # A var may have been used as several tensors: as recorded, by a backward function, and recomputed.
    renamed += [
        Eqn(CUSTOM, (numbers[var],), (leaf,), (), 0)
        for leaf, var in computation.feeds
        if var in made and numbers[var] != leaf
    ]
    others = [(leaf, var) for leaf, var in computation.feeds if numbers[var] != leaf and var not in made]
    producers = [one if one == LEAF else one + len(renamed) for one in producers]
    for index, eqn in enumerate(renamed):
        for var in eqn.outputs:
            producers[var] = index
    return computation._replace(
        types=tuple(types),
        producers=tuple(producers),
        eqns=(*renamed, *computation.eqns),
        feeds=(*((leaf, var) for var, leaf in numbers.items() if var not in made), *others),
    )
