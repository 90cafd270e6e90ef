"""Jacobians: one walk for each element of the target, vectorized where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.execute._plan import Plan
from retrotape.execute._query import Query, differentiate
from retrotape.record import Trace
from retrotape.tf import threads
from retrotape.tf.core import tf, traced

Track = Callable[[Sequence[Any]], Iterator[Any]]  # iterates over items, and may show progress
FEW = 16  # up to this many rows, separate walks cost less than tracing a vectorized one
AT_ONCE = 2**24  # bytes of seeds that are made at once, unless the caller says how many rows


class UnitSeeds:
    """The seeds of a Jacobian: the rows of an identity, made a few at a time, as all of them may outweigh the result.

    Args:
      shape: That of the target, as a tensor in a graph, where it may be unknown.
      dtype: That of the target.
      batched: Whether each seed is 1 in all rows of the target, at the same place.

    Attributes:
      known: How many there are; None in a graph that does not know.
    """

    def __init__(self, shape: Any, dtype: Any, batched: bool = False) -> None:
        self._shape, self._dtype, self._batched = shape, dtype, batched
        self._ones = shape[1:] if batched else shape
        self._count = tf.reduce_prod(self._ones)
        self.known = tf.get_static_value(self._count)

    def __len__(self) -> int:
        return int(self.known)

    def at_once(self, chunk: int | None) -> int | None:
        """Return how many rows to make at once; None for all of them."""
        if self.known is None or (chunk is None and not tf.executing_eagerly()):
            return None
        row = len(self) * self._dtype.size * (int(self._shape[0]) if self._batched else 1)
        chunk = chunk or max(FEW + 1, AT_ONCE // max(row, 1))
        return chunk if chunk < len(self) else None

    def nbytes(self, chunk: int | None) -> int:
        """Return the bytes of the rows that are made at once, where the size of the target is known."""
        rows = self.at_once(chunk) or len(self)
        return rows * len(self) * self._dtype.size * (int(self._shape[0]) if self._batched else 1)

    def all(self) -> Tensor:
        """Return all rows."""
        return self._shaped(tf.eye(self._count, dtype=self._dtype), self._count)

    def part(self, begin: int, end: int) -> Tensor:
        """Return some rows; those after the last one are zero."""
        return self._shaped(tf.one_hot(tf.range(begin, end), len(self), dtype=self._dtype), end - begin)

    def each(self) -> Iterator[Tensor]:
        """Yield one row after the other."""
        size = self.at_once(None)
        if size is None:
            yield from tf.unstack(self.all())
            return
        for begin in range(0, len(self), size):
            yield from tf.unstack(self.part(begin, min(begin + size, len(self))))

    def _shaped(self, rows: Tensor, count: Any) -> Tensor:
        if not self._batched:
            return tf.reshape(rows, tf.concat([[count], self._shape], 0))
        columns = tf.reshape(rows, tf.concat([[count, 1], self._ones], 0))
        return tf.broadcast_to(columns, tf.concat([[count], self._shape], 0))


def rows(
    trace: Trace,
    query: Query,
    seeds: UnitSeeds,
    operations: Sequence[Any] | None,
    vectorize: bool,
    chunk: int | None = None,
    track: Track = iter,
) -> list[Tensor | None]:
    """Run the query once for each seed and stack the results, for each source.

    Args:
      trace: The trace.
      query: The query; its seeds are ignored.
      seeds: The cotangents of the target, one per row.
      operations: The operations, if in a graph.
      vectorize: Whether rows may be vectorized.
      chunk: The largest number of rows to vectorize at once.
      track: Iterates over the chunks, or over the rows.
    """
    plan = query.plan(trace)

    def one(seed: Tensor) -> list[Any]:
        return differentiate(trace, query._replace(seeds=(seed,)), operations, plan)

    if vectorize and _can_vectorize(trace, plan, seeds):
        return _vectorized(one, seeds, len(query.sources), chunk, track)
    if seeds.known == 0:  # there are no rows, so only their shape matters
        none_of = one(seeds.part(0, 1)[0])
        return [None if grad is None else tf.convert_to_tensor(grad)[tf.newaxis][:0] for grad in none_of]
    found = [one(seed) for _, seed in zip(track(range(len(seeds))), seeds.each(), strict=True)]
    return [
        None if column[0] is None else tf.stack([tf.convert_to_tensor(grad) for grad in column])
        for column in zip(*found, strict=True)
    ]


def vectorizes(trace: Trace, query: Query, count: int) -> bool:
    """Return whether `rows` would vectorize this many rows in eager code."""
    return tf.executing_eagerly() and _fits(trace, query.plan(trace), count)


def _can_vectorize(trace: Trace, plan: Plan, seeds: UnitSeeds) -> bool:
    return not tf.executing_eagerly() or _fits(trace, plan, len(seeds))


def _fits(trace: Trace, plan: Plan, count: int) -> bool:
    # A custom backward function may read variables, and only eager reads can be given recorded values.
    by_code = any(index in trace.facts.backward_functions or index in trace.facts.calls for index in plan.indices)
    return count > FEW and not by_code and not threads.gone


def _vectorized(one: Any, seeds: UnitSeeds, count: int, chunk: int | None, track: Track) -> list[Tensor | None]:
    connected: list[bool] = [False] * count

    def dense(seed: Tensor) -> list[Tensor]:
        found = one(seed)
        connected[:] = [grad is not None for grad in found]
        return [tf.convert_to_tensor(grad) for grad in found if grad is not None]

    def side_by_side(some: Tensor) -> list[Tensor]:
        return tf.vectorized_map(dense, some) if count else []

    # Traced once for all chunks. TensorFlow's own function would be retraced for each, with a warning.
    run = traced(side_by_side) if tf.executing_eagerly() else side_by_side
    stacked = iter(in_chunks(run, seeds, chunk, track))
    return [next(stacked) if there else None for there in connected]


def in_chunks(run: Callable[[Tensor], list[Tensor]], seeds: UnitSeeds, chunk: int | None, track: Track) -> list[Tensor]:
    """Run a function on chunks of rows, all of one size, and join the results."""
    size = seeds.at_once(chunk)
    if size is None:
        return run(seeds.all())
    pieces = [run(seeds.part(start, start + size)) for start in track(range(0, len(seeds), size))]
    return [tf.concat(column, 0)[: len(seeds)] for column in zip(*pieces, strict=True)]
