"""What the shards of a job have to agree on: mirrored variables and constants."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from retrotape.errors import ShardMismatchError
from retrotape.ir import FunctionProgram, VariableHistory
from retrotape.record import Trace
from retrotape.tf.core import identity_of, tf
from retrotape.tf.nests import TensorRef
from retrotape.transform._value_bytes import value_bytes

NUMBER = "#"  # between the name of a variable and its number among those of the same name


class Shard(NamedTuple):
    """What one worker has recorded.

    Attributes:
      trace: Its trace.
      names: What its names refer to: a `TensorRef`, or a variable.
      mirrored: The names of its mirrored variables, by key of their history; numbered where several have one name.
    """

    trace: Trace
    names: Mapping[str, Any]
    mirrored: Mapping[int, str]


def homes(shards: Sequence[Shard]) -> dict[str, tuple[int, VariableHistory]]:
    """Return, for each mirrored variable, the first worker that has it, and its history there."""
    found: dict[str, tuple[int, VariableHistory]] = {}
    _check_names(shards)
    for which, shard in enumerate(shards):
        for key, name in shard.mirrored.items():
            history = shard.trace.facts.histories[key]
            if name in found:
                _compare(name, shards, found[name], (which, history))
            else:
                found[name] = which, history
    return found


def _check_names(shards: Sequence[Shard]) -> None:
    """Raise if a worker has not used a mirrored variable: it may have used it by another name."""
    every = [set(shard.mirrored.values()) for shard in shards]
    for which, names in enumerate(every):
        missing = sorted(set().union(*every) - names)
        if missing:
            raise ShardMismatchError(
                f"worker {which} has not used the mirrored variable {missing[0]!r}, or by another name",
                "Use it on every worker or on none, and give variables and layers names: `Dense(4, name='hidden')`.",
            )


def _compare(
    name: str, shards: Sequence[Shard], left: tuple[int, VariableHistory], right: tuple[int, VariableHistory]
) -> None:
    """Raise if the histories of a mirrored variable on two workers do not agree."""
    (home, ours), (which, theirs) = left, right
    if len(ours.versions) != len(theirs.versions):
        raise ShardMismatchError(
            f"{name!r} has {len(ours.versions)} values on worker {home} and {len(theirs.versions)} on worker {which}",
            "Open and close the tape at the same place on every worker.",
        )
    for number, pair in enumerate(zip(ours.versions, theirs.versions, strict=True)):
        kinds, digests = [], []
        for worker, var in zip((home, which), pair, strict=True):
            trace = shards[worker].trace
            kinds.append((trace.program.types[var], trace.program.producers[var] >= 0))
            digests.append(None if kinds[-1][1] else digest(trace, var))
        if kinds[0] != kinds[1] or (None not in digests and digests[0] != digests[1]):
            raise ShardMismatchError(f"value {number} of {name!r} differs between worker {home} and worker {which}")


def named_vars(shard: Shard) -> dict[int, frozenset[str]]:
    """Return the vars that have names, with these."""
    found: dict[int, set[str]] = {}
    for name, what in shard.names.items():
        var = shard.trace.tensors.get(identity_of(what)) if isinstance(what, TensorRef) else None
        if var is not None:
            found.setdefault(var, set()).add(name)
    return {var: frozenset(names) for var, names in found.items()}


def digest(trace: Trace, var: int) -> str | None:
    """Return a digest of the value of a leaf; None if there is no value."""
    value = trace.values.get(var)
    if isinstance(value, tf.Tensor):
        return hashlib.sha256(value_bytes(value)).hexdigest()
    return getattr(value, "digest", None)


def content(function: FunctionProgram, known: dict[int, str]) -> str:
    """Return a digest of what a function computes; `known` has those of functions inside, by id."""
    found = known.get(id(function))
    if found is None:
        nested = sorted(function.program.facts.backward_functions.items())
        inner = [(at, b.inputs, b.outputs, b.captures, content(b.function, known)) for at, b in nested]
        parts = str(function.program), function.cotangents, function.captures, function.results, inner
        found = known[id(function)] = hashlib.sha256(repr(parts).encode()).hexdigest()
    return found
