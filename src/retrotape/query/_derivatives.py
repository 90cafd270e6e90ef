"""Derivatives built from walks: Jacobians, products with vectors, Hessians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.errors import ShapeMismatchError
from retrotape.execute import Query, Request, UnitSeeds, differentiate, dot, in_chunks, rows, tracked, vectorizes
from retrotape.ir import bytes_of
from retrotape.lower import compiled_rows
from retrotape.query._base import current
from retrotape.query._request import refuse_outside, solve
from retrotape.record import Session, Trace, current_stack
from retrotape.tf.core import tf, zeros
from retrotape.tf.nests import Parts, has_derivative, ones_like, shape_tensor, zeros_like

CHUNK = 1024  # rows of a Hessian that are vectorized at once by default
_PLAIN = (np.ndarray, np.generic, int, float, complex)  # converted to the dtype of their source


def jacobian(
    session: Session, request: Request, target: Tensor, vectorize: bool, chunk: int | None
) -> list[Tensor | None]:
    """Return, for each source, the derivative of each element of the target."""
    if request.left_out:
        return [None] * len(request.sources)
    shape = shape_tensor(target)
    stacked = _stack(session, request, UnitSeeds(shape, target.dtype), vectorize, chunk)
    return [None if rows is None else tf.reshape(rows, tf.concat([shape, tf.shape(rows)[1:]], 0)) for rows in stacked]


def batch_jacobian(
    session: Session, request: Request, target: Tensor, source: Tensor, vectorize: bool
) -> list[Tensor | None]:
    """Return the derivative of each row of the target with respect to the same row of the source."""
    if request.left_out:
        return [None]
    shape = shape_tensor(target)
    width = tf.reduce_prod(shape[1:])
    (stacked,) = _stack(session, request, UnitSeeds(shape, target.dtype, batched=True), vectorize, None)
    if stacked is None:
        return [None]
    by_row = tf.transpose(tf.reshape(stacked, tf.stack([width, shape[0], -1])), [1, 0, 2])
    return [tf.reshape(by_row, tf.concat([shape, shape_tensor(source)[1:]], 0))]


def _stack(
    session: Session, request: Request, seeds: UnitSeeds, vectorize: bool, chunk: int | None
) -> list[Tensor | None]:
    refuse_outside(request, True, "for a Jacobian")
    _check_room(session.trace, request, seeds, chunk)
    found: list[Tensor | None] = [None] * len(request.sources)
    track = partial(tracked, what="rows") if tf.executing_eagerly() else iter
    for positions, query in request.queries():
        stacked = _compiled_stack(session, query, seeds, chunk, track) if vectorize else None
        if stacked is None:
            stacked = rows(session.trace, query, seeds, session.operations, vectorize, chunk, track)
        for position, grad in zip(positions, stacked, strict=True):
            found[position] = grad
    return found


def _compiled_stack(
    session: Session, query: Query, seeds: UnitSeeds, chunk: int | None, track: Callable[..., Any]
) -> list[Tensor] | None:
    """Return the rows by a compiled function; None if there is none yet."""
    trace = session.trace
    kind = query.targets, query.sources, query.through_updates, query.since

    def one(seed: Tensor) -> list[Any]:
        return differentiate(trace, query._replace(seeds=(seed,)))

    def run(some: Tensor) -> list[Tensor] | None:
        return compiled_rows(trace, kind, some, one)

    return None if trace.symbolic else _run_in_chunks(run, seeds, chunk, track)


def _run_in_chunks(
    run: Callable[[Tensor], list[Tensor] | None], seeds: UnitSeeds, chunk: int | None, track: Callable[..., Any]
) -> list[Tensor] | None:
    """Return the results of a function for all rows; None if there is none yet."""
    size = seeds.at_once(chunk)
    if size is not None and run(seeds.part(0, size)) is None:
        return None
    return in_chunks(run, seeds, chunk, track)  # type: ignore[arg-type]


def _check_room(trace: Trace, request: Request, seeds: UnitSeeds, chunk: int | None) -> None:
    """Raise if what a small file asks for needs more memory than the file may take."""
    if trace.guard is not None:
        sources = sum(bytes_of(trace.program.types[source[0]]) for source in request.sources if source)
        trace.guard.check_room("a Jacobian", seeds.nbytes(chunk) + len(seeds) * sources)


def jvp(session: Session, request: Request, target: Tensor, tangents: list[Tensor]) -> list[Tensor | None]:
    """Return the directional derivative of the target along the tangents, as the only item of a list."""
    if request.left_out:
        return [None]
    with session.forked() as fork:
        # A gradient is linear in its seed, so its derivative with respect to the seed gives the product.
        seed, trace = ones_like(target), fork.trace
        moved = dot(solve(fork, request._replace(seeds=(seed,))), tangents)
        if moved is None:
            return [None]
        fork.flush()
        through = (any(request.through),)
        second = _request_for(fork, moved, request, trace)._replace(sources=((fork.var_of(seed),),), through=through)
        with _last_walk(session, fork):
            return solve(fork, second)


def hvp(session: Session, request: Request, sources: Parts, vectors: list[Tensor]) -> list[Tensor | None]:
    """Return the product of the Hessian with the vectors, for each source."""
    with session.forked() as fork:
        trace, first = fork.trace, solve(fork, request)
        moved = dot(first, vectors)
        if moved is None:
            return [None] * len(first)
        fork.flush()
        again = _request_for(fork, moved, request, trace)
        with _last_walk(session, fork):
            second = solve(fork, again)
    return [
        zeros_like(part) if product is None and grad is not None else product
        for part, grad, product in zip(sources.flat, first, second, strict=True)
    ]


def _last_walk(session: Session, fork: Session) -> AbstractContextManager[None]:
    """Return the context for the last of several derivatives: it is not recorded, unless all of them are."""
    return nullcontext() if fork is session else current_stack().without(fork.trace)


def hessian(session: Session, request: Request, sources: Parts, chunk: int | None, whole: bool) -> list[Tensor]:
    """Return all blocks of the Hessian, row by row, or with `whole` one matrix."""
    columns = _compiled_columns(session, request, sources, chunk)
    if columns is not None:
        if whole:
            return [tf.concat([tf.reshape(column, [len(column), -1]) for column in columns], 1)]
        return [block for row in _cut(columns, sources.flat) for block in row]
    with session.forked() as fork:
        trace = fork.trace
        first = [None if grad is None else tf.convert_to_tensor(grad) for grad in solve(fork, request)]
        joined = _joined(fork, first)
        fork.flush()
        each = [None if grad is None else _request_for(fork, grad, request, trace) for grad in first]
        columns = None
        if joined is not None:
            together = _request_for(fork, joined, request, trace)
            with _last_walk(session, fork):
                columns = _columns(fork, together, joined, chunk)
        complete = columns is not None and all(value is not None for value in (*first, *columns))
        if whole and complete and joined is not None and columns is not None:
            return [tf.concat([tf.reshape(column, [joined.shape[0], -1]) for column in columns], 1)]
        if columns is None:
            with _last_walk(session, fork):
                found = [
                    [None] * len(first) if grad is None or again is None else jacobian(fork, again, grad, True, chunk)
                    for grad, again in zip(first, each, strict=True)
                ]
        else:
            found = _cut(columns, first)
    parts = sources.flat
    blocks = [
        [
            zeros([*part.shape, *other.shape], part.dtype) if block is None else block
            for block, other in zip(row, parts, strict=True)
        ]
        for row, part in zip(found, parts, strict=True)
    ]
    return [as_matrix(blocks, sources)] if whole else [block for row in blocks for block in row]


def _compiled_columns(session: Session, request: Request, sources: Parts, chunk: int | None) -> list[Tensor] | None:
    """Return the columns of the Hessian by a compiled function; None if there is none yet."""
    parts = sources.flat
    sizes = [part.shape.num_elements() for part in parts]
    dtypes = {part.dtype for part in parts}
    if session.trace.symbolic or request.derived_from or None in sizes or len(dtypes) != 1:
        return None
    if not all(map(has_derivative, parts)):
        return None
    count = sum(sizes)

    def one(seed: Tensor) -> list[Any]:
        with session.forked() as fork:
            first = solve(fork, request)
            if any(grad is None for grad in first):
                return first
            joined = tf.concat([tf.reshape(grad, [-1]) for grad in first], 0)
            fork.flush()
            again = _request_for(fork, joined, request, fork.trace)._replace(seeds=(seed,))
            with _last_walk(session, fork):
                return solve(fork, again)

    def run(some: Tensor) -> list[Tensor] | None:
        return compiled_rows(session.trace, ("hessian", request.key()), some, one)

    seeds, chunk = UnitSeeds([count], parts[0].dtype), chunk or CHUNK
    _check_room(session.trace, request, seeds, chunk)
    columns = _run_in_chunks(run, seeds, chunk, partial(tracked, what="rows"))
    if columns is None or not all(bool(_is_finite(column)) for column in columns):
        return None  # zero times infinity is NaN: each gradient has to be differentiated alone
    return columns


def _joined(session: Session, grads: list[Tensor | None]) -> Tensor | None:
    """Return all gradients as one vector, which needs one walk and not several; None if that does not help."""
    there = [grad for grad in grads if grad is not None]
    if session.graph is not None or len(there) < 2 or len({grad.dtype for grad in there}) > 1:
        return None
    return tf.concat([tf.reshape(grad, [-1]) for grad in there], 0)


def _columns(session: Session, request: Request, joined: Tensor, chunk: int | None) -> list[Tensor | None] | None:
    """Return the derivatives of all gradients as one vector; None if each gradient needs its own walk."""
    count = len(joined)
    if not all(vectorizes(session.trace, query, count) for _, query in request.queries()):
        return None  # each row would pass through all gradients, though only one of them is nonzero
    chunk = chunk or (CHUNK if count > CHUNK else None)
    columns = _stack(session, request, UnitSeeds([count], joined.dtype), True, chunk)
    # The other gradients got zeros, and zero times infinity is NaN: then differentiate each gradient alone.
    finite = all(column is None or bool(_is_finite(column)) for column in columns)
    return columns if finite else None


def _cut(columns: Sequence[Tensor | None], grads: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
    """Split the columns into rows of blocks."""
    sizes = [0 if grad is None else grad.shape.num_elements() for grad in grads]
    cut = [[None] * len(grads) if column is None else tf.split(column, sizes) for column in columns]
    return [
        [None if grad is None else _shaped(pieces[number], grad) for pieces in cut] for number, grad in enumerate(grads)
    ]


def _shaped(rows: Tensor | None, grad: Tensor) -> Tensor | None:
    return None if rows is None else tf.reshape(rows, [*grad.shape, *rows.shape[1:]])


def _is_finite(value: Tensor) -> Tensor:
    parts = [tf.math.real(value), tf.math.imag(value)] if value.dtype.is_complex else [value]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in parts])


def _request_for(session: Session, target: Tensor, request: Request, trace: Trace) -> Request:
    """Return the request for the derivative of a new tensor with respect to the sources of one made for a trace."""
    request = current(session, request, trace)
    return request._replace(targets=(session.var_of(target),), seeds=(tf.ones_like(target),), derived_from=())


def as_matrix(blocks: list[list[Tensor]], sources: Parts) -> Tensor:
    """Return the blocks of a Hessian as one matrix."""
    sizes = [part.shape.num_elements() for part in sources.flat]
    flat = [
        tf.concat([tf.reshape(block, [height, width]) for block, width in zip(row, sizes, strict=True)], 1)
        for row, height in zip(blocks, sizes, strict=True)
    ]
    return tf.concat(flat, 0)


# ------------------------------------------------------------------ checks of arguments


def vectors_for(sources: Parts, given: Any, role: str) -> list[Tensor]:
    """Return the vectors, one for each source and in its shape, or raise."""
    # Constants, even if they are on the tape: the product does not depend on how they were computed.
    parts, items = sources.flat, tf.nest.flatten(given)
    if len(items) != len(parts):
        raise ShapeMismatchError(f"Got {len(items)} {role}s for {len(parts)} sources; give one {role} for each source.")
    kinds = [part.dtype if isinstance(item, _PLAIN) else None for item, part in zip(items, parts, strict=True)]
    flat = [tf.stop_gradient(tf.convert_to_tensor(item, kind)) for item, kind in zip(items, kinds, strict=True)]
    for vector, part in zip(flat, parts, strict=True):
        if vector.dtype != part.dtype or not vector.shape.is_compatible_with(part.shape):
            raise ShapeMismatchError(
                f"Got a {role} {vector.dtype.name}{list(vector.shape)} for a source "
                f"{part.dtype.name}{list(part.shape)}; each {role} must have the dtype and shape of its source."
            )
    return flat


def check_scalar(target: Tensor, method: str) -> None:
    """Raise unless the target is a scalar: second derivatives are never summed silently."""
    if target.shape.rank not in (0, None):
        raise ShapeMismatchError(
            f"{method} takes a scalar target, got shape {tuple(target.shape)}. Reduce it inside the block: "
            "`loss = tf.reduce_sum(target)`, or query each element."
        )


def check_batches(target: Tensor, source: Any) -> None:
    """Raise unless target and source have rank two or more and the same number of rows."""
    ranks_fit = all(tensor.shape.rank is None or tensor.shape.rank >= 2 for tensor in (target, source))
    if not ranks_fit or not target.shape[:1].is_compatible_with(source.shape[:1]):
        raise ShapeMismatchError(
            "batch_jacobian needs a target and a source of rank two or more with the same first dimension, got shapes "
            f"{tuple(target.shape)} and {tuple(source.shape)}. For other shapes use `tape.jacobian`, or "
            "`tape.per_example` for a vector of losses."
        )


def check_vector(losses: Tensor) -> None:
    """Raise unless there is one loss for each example."""
    if losses.shape.rank not in (1, None):
        raise ShapeMismatchError(
            f"per_example takes a vector of losses, one for each example, got shape {tuple(losses.shape)}. "
            "Reduce all but the first dimension inside the block: `tf.reduce_mean(losses, axis=1)`."
        )
