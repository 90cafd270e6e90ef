"""Properties of ops that the recorder needs."""

from __future__ import annotations

import json
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from retrotape.ir import COLLECTIVES, CUSTOM, Eqn
from retrotape.rules import FORWARD, NoGradient, Rule, lookup
from retrotape.tf import core

RESOURCE = 20

TRAINABLE = core.TRAINABLE_DTYPES


class Kind(Enum):
    """How an op uses resources."""

    PLAIN = "neither reads nor writes a variable"
    READ = "reads a variable: its value takes the place of the handle"
    WRITE = "changes a variable: the new value is one more output"
    CALL = "a function; what it does to variables stands in its graph"
    SEND = "sends a value to all workers, or receives it"


class Keep(NamedTuple):
    """Which tensors of an equation its gradient rule reads: none, or all except those at positions `but`."""

    some: bool
    but: tuple[int, ...] = ()


NOTHING = Keep(False)


class Traits(NamedTuple):
    """How an op is recorded, and which of its values are kept."""

    kind: Kind
    inputs: Keep
    outputs: Keep
    replayable: bool  # the same inputs give the same outputs, so they can be recomputed
    opaque: bool = False  # writes a variable in a way that has no derivative rule
    nondifferentiable: bool = False  # declared to have no gradient: no path passes through it


_READS = frozenset(("ReadVariableOp", "ResourceGather", "ResourceGatherNd"))
# Not stateful for TensorFlow, but their results change with the files.
_READS_FILES = frozenset(("MatchingFiles", "ReadFile"))
# Ops that take a variable's handle and do not access its value.
_BYSTANDERS = frozenset(
    ("VarHandleOp", "VariableShape", "VarIsInitializedOp", "DestroyResourceOp", "DisableCopyOnRead")
)


@cache
def _exclusions() -> dict[str, list]:
    return json.loads(Path(__file__).with_name("exclusions.json").read_text())


@lru_cache(4096)  # twice the number of ops; function names vary
def traits(op: str) -> Traits:
    """Return the traits of `op`, which may be the name of a function."""
    definition = core.op_def(op)
    if op in COLLECTIVES:  # needs the values of other workers, so it cannot be recomputed
        return Traits(Kind.PLAIN, NOTHING, NOTHING, False)
    if definition is None:
        return Traits(Kind.CALL, NOTHING, NOTHING, False)
    kind = Kind.PLAIN
    if op.startswith("CollectiveBcast"):
        kind = Kind.SEND
    elif op in _READS:
        kind = Kind.READ
    elif op not in _BYSTANDERS and any(arg.type == RESOURCE for arg in definition.input_arg):
        kind = Kind.WRITE
    inputs, outputs = _kept(op)
    nondifferentiable = kind is Kind.PLAIN and isinstance(lookup(op), NoGradient)
    replayable = not definition.is_stateful and op not in _READS_FILES
    return Traits(kind, inputs, outputs, replayable, op not in FORWARD, nondifferentiable)


def makes_copies(op: str) -> bool:
    """Return whether an op reads or updates slices of a variable: reads of the variable are copies from then on."""
    return op.startswith(("ResourceGather", "ResourceScatter", "ResourceSparse", "ResourceStrided"))


def _kept(op: str) -> tuple[Keep, Keep]:
    if not isinstance(lookup(op), Rule):
        return NOTHING, NOTHING
    unused = _exclusions().get(op)
    if unused is None:
        return Keep(True), Keep(True)
    inputs, outputs = (NOTHING if row == "all" else Keep(True, tuple(row)) for row in unused)
    return inputs, outputs


def read_by_rule(eqn: Eqn) -> list[int]:
    """Return the vars whose values the backward rule of an equation may read."""
    features = traits(eqn.op)
    if eqn.op == CUSTOM:
        return []  # its backward function holds what it needs
    if features.kind is not Kind.PLAIN:
        return list(eqn.inputs)
    found = []
    for variables, (some, but) in ((eqn.inputs, features.inputs), (eqn.outputs, features.outputs)):
        if some:
            found += [var for position, var in enumerate(variables) if position not in but]
    return found


def is_deterministic(op: str) -> bool:
    """Return whether the same inputs always give the same outputs."""
    if op in FORWARD or op in (CUSTOM, "CheckNumerics"):  # CheckNumerics is marked stateful
        return True
    return op.startswith("ResourceGather") or traits(op).replayable
