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


def rows(
    trace: Trace,
    query: Query,
    seeds: Tensor,
    operations: Sequence[Any] | None,
    vectorize: bool,
    chunk: int | None = None,
    track: Track = iter,
) -> list[Tensor | None]:
    """Run the query once for each row of `seeds` and stack the results, for each source.

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
    if seeds.shape[0] == 0:  # there are no rows, so only their shape matters
        none_of = one(tf.zeros(seeds.shape[1:], seeds.dtype))
        return [None if grad is None else tf.convert_to_tensor(grad)[tf.newaxis][:0] for grad in none_of]
    found = [one(seed) for seed in track(tf.unstack(seeds))]
    return [
        None if column[0] is None else tf.stack([tf.convert_to_tensor(grad) for grad in column])
        for column in zip(*found, strict=True)
    ]


def vectorizes(trace: Trace, query: Query, count: int) -> bool:
    """Return whether `rows` would vectorize this many rows in eager code."""
    return tf.executing_eagerly() and _fits(trace, query.plan(trace), count)


def _can_vectorize(trace: Trace, plan: Plan, seeds: Tensor) -> bool:
    return not tf.executing_eagerly() or _fits(trace, plan, len(seeds))


def _fits(trace: Trace, plan: Plan, count: int) -> bool:
    # A custom backward function may read variables, and only eager reads can be given recorded values.
    by_code = any(index in trace.facts.backward_functions or index in trace.facts.calls for index in plan.indices)
    return count > FEW and not by_code and not threads.gone


def _vectorized(one: Any, seeds: Tensor, count: int, chunk: int | None, track: Track) -> list[Tensor | None]:
    connected: list[bool] = [False] * count

    def dense(seed: Tensor) -> list[Tensor]:
        found = one(seed)
        connected[:] = [grad is not None for grad in found]
        return [tf.convert_to_tensor(grad) for grad in found if grad is not None]

    def side_by_side(some: Tensor) -> list[Tensor]:
        return tf.vectorized_map(dense, some) if count else []

    # Traced once for all chunks. TensorFlow's own function would be retraced for each, with a warning.
    run = traced(side_by_side) if tf.executing_eagerly() else side_by_side
    if chunk is None or (seeds.shape[0] is not None and seeds.shape[0] <= chunk):
        stacked = iter(run(seeds))
    else:
        stacked = iter(in_chunks(run, seeds, chunk, track))
    return [next(stacked) if there else None for there in connected]


def in_chunks(run: Callable[[Tensor], list[Tensor]], seeds: Tensor, chunk: int, track: Track) -> list[Tensor]:
    """Run a function on chunks of rows, all of one size, and join the results."""
    total = len(seeds)
    spare = -total % chunk  # rows of zeros, so that all chunks have one shape
    padded = tf.pad(seeds, [[0, spare]] + [[0, 0]] * (seeds.shape.rank - 1))
    pieces = [run(padded[start : start + chunk]) for start in track(range(0, total, chunk))]
    return [tf.concat(column, 0)[:total] for column in zip(*pieces, strict=True)]
