"""Which variables several losses share, and which belong to one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from retrotape.aggregate._columns import Column
from retrotape.errors import UnknownSourceError
from retrotape.grads import identities_of, name_of
from retrotape.tf.core import tf


class Parts(NamedTuple):
    """The columns of rows: those that are combined, those of one loss each, and keys without any gradient."""

    shared: list[Column]
    own: list[Column]
    missing: list[Any]


def split(columns: Sequence[Column], count: int, shared: Iterable[Any] | None = None) -> Parts:
    """Return which variables are shared.

    Args:
      columns: The columns of all variables.
      count: How many losses there are.
      shared: Those that are; by default the ones that more than one loss has a gradient for.

    Raises:
      UnknownSourceError: If one of them has no column.
    """
    present = [(column, column.present()) for column in columns]
    there = [(column, losses) for column, losses in present if losses]
    if shared is None:
        together = [losses > 1 or count == 1 for _, losses in there]
    else:
        wanted = _identities(columns, tf.nest.flatten(list(shared)))
        together = [one in wanted for one in identities_of(column.key for column, _ in there)]
    return Parts(
        [column for (column, _), is_shared in zip(there, together, strict=True) if is_shared],
        [column for (column, _), is_shared in zip(there, together, strict=True) if not is_shared],
        [column.key for column, losses in present if not losses],
    )


def _identities(columns: Sequence[Column], keys: Sequence[Any]) -> set[Any]:
    """Return what tells the shared variables apart; a variable may be given by its name, or the end of it."""
    known = identities_of(column.key for column in columns)
    names = [name_of(column.key) for column in columns]
    found = set()
    for identity, key in zip(identities_of(keys), keys, strict=True):
        if isinstance(key, str) and identity not in known:
            places = [place for place, name in enumerate(names) if f"/{name}".endswith(f"/{key}")]
            identity = known[places[0]] if len(places) == 1 else None
        if identity not in known:
            raise UnknownSourceError(name_of(key), names, isinstance(key, str))
        found.add(identity)
    return found
