"""Takes batches out of the iterator of `fit` to look at them, and hands them on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from retrotape.tf.core import as_is, tf
from retrotape.tf.replicas import values_of


def take(iterator: Any, count: int) -> list[Any]:
    """Return the next batches, fewer at the end."""
    found = []
    for _ in range(count):
        try:
            found.append(next(iterator))
        except (StopIteration, tf.errors.OutOfRangeError):
            break
    return found


def handed_on(batches: Sequence[Any], iterator: Any, strategy: Any) -> Any:
    """Return an iterator over batches of the same type as the one that they came from.

    The same type: else `fit` would trace its function once more, and with other shapes it might round otherwise.
    """
    kinds = tf.nest.flatten(iterator.element_spec, expand_composites=True)
    if not isinstance(iterator, tf.distribute.DistributedIterator):
        return iter(_dataset(batches, kinds, iterator.element_spec))
    parts = [part for batch in batches for part in _per_replica(batch)]
    kinds = _kinds_of_one(kinds, parts[0], len(parts) // len(batches))
    return iter(strategy.distribute_datasets_from_function(lambda _: _dataset(parts, kinds, parts[0])))


def _per_replica(batch: Any) -> list[Any]:
    """Return the batch of each replica of this worker."""
    columns = [values_of(item) for item in tf.nest.flatten(batch)]
    return [tf.nest.pack_sequence_as(batch, list(row)) for row in zip(*columns, strict=True)]


def _kinds_of_one(kinds: Sequence[Any], batch: Any, replicas: int) -> list[Any]:
    """Return what belongs to the first replica, of specs that have each item once for each replica."""
    found: list[Any] = []
    at = 0
    for item in tf.nest.flatten(batch):
        width = len(tf.nest.flatten(item, expand_composites=True))
        found += kinds[at : at + width]
        at += width * replicas
    return found


def _dataset(batches: Sequence[Any], kinds: Sequence[Any], structure: Any) -> tf.data.Dataset:
    """Return a dataset of batches in a structure, of tensors whose shapes are those of `kinds`, known or not."""

    @as_is
    def loosened(*parts: Any) -> Any:
        flat = tf.nest.flatten(parts, expand_composites=True)
        loose = [_loosened(part, kind) for part, kind in zip(flat, kinds, strict=True)]
        return tf.nest.pack_sequence_as(structure, loose, expand_composites=True)

    made = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    return reduce(lambda one, other: one.concatenate(other), made).map(loosened)


def _loosened(part: Any, kind: Any) -> Any:
    """Return a tensor of which no more is known than its kind: neither its shape nor, for a shape, its value."""
    return part if part.dtype == tf.variant else tf.compat.v1.placeholder_with_default(part, kind.shape)
