"""The names of a job: plain for what its workers share, with the number of the shard for what is of one worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrotape.errors import ShardMismatchError
from retrotape.record import Trace
from retrotape.tf.core import identity_of
from retrotape.tf.nests import TensorRef
from retrotape.transform._shard_checks import Shard

_VARIABLE = -1  # in place of a var


def names_of_job(
    joined: Trace, shards: Sequence[Shard], maps: Sequence[Mapping[int, int]], homes: Mapping[str, int]
) -> dict[str, Any]:
    """Return what the names of a whole job refer to.

    Args:
      joined: The trace of the job.
      shards: What each worker has recorded.
      maps: For each worker, its vars and their counterparts in `joined`.
      homes: For each mirrored variable, the worker whose variable stands for all.

    Raises:
      ShardMismatchError: If a name would refer to two things.
    """
    common = set.intersection(*(set(mapped.values()) for mapped in maps))
    found: dict[str, Any] = {}
    for which, shard in enumerate(shards):
        for name, what in shard.names.items():
            var = _var_of(joined, what)
            mirrored = shard.mirrored.get(identity_of(what.handle)) if var == _VARIABLE else None
            if mirrored is not None:
                if homes[mirrored] == which:
                    found[name] = what
                continue
            known = [_var_of(joined, other.names.get(name)) for other in shards]
            same = var in common and all(other in (None, var) for other in known)
            full = name if same else f"shard_{which}/{name}"
            if full in found and not same:
                raise ShardMismatchError(f"the name {full!r} refers to two things", "Choose other names in `names=`.")
            found.setdefault(full, what)
            _rename(joined, full, var, what)
    return dict(sorted(found.items()))


def _var_of(joined: Trace, what: Any) -> int | None:
    """Return the var that a name refers to, or that it is a variable; None if there is no such name."""
    if what is None:
        return None
    return joined.tensors.get(identity_of(what)) if isinstance(what, TensorRef) else _VARIABLE


def _rename(joined: Trace, name: str, var: int | None, what: Any) -> None:
    """Let a variable of one worker, and the message about a value that was left out, have the name of the job."""
    if var == _VARIABLE:
        what.name = name
        return
    rename = None if var is None else getattr(joined.values.get(var), "renamed", None)
    if rename is not None and var is not None:
        joined.values[var] = rename(name)
