"""Derivatives made of walks: Jacobians, products with vectors, Hessians."""

from __future__ import annotations

from typing import Any

import numpy as np

from retrotape._asking import Log, Request, solve
from retrotape._nests import Parts, zeros_like
from retrotape._tf import tf, zeros
from retrotape.errors import ShapeMismatchError
from retrotape.execute import dot, rows

Tensor = Any
_PLAIN = (np.ndarray, np.generic, int, float, complex)  # take the dtype of their source


def jacobian(log: Log, request: Request, target: Tensor, vectorize: bool, chunk: int | None) -> list[Tensor | None]:
    """Return, for each source, the derivative of each element of the target."""
    if request.left_out:
        return [None] * len(request.sources)
    shape = tf.shape(target)
    size = tf.reduce_prod(shape)
    eye = tf.reshape(tf.eye(size, dtype=target.dtype), tf.concat([[size], shape], 0))
    stacked = _stack(log, request, eye, vectorize, chunk)
    return [None if rows is None else tf.reshape(rows, tf.concat([shape, tf.shape(rows)[1:]], 0)) for rows in stacked]


def batch_jacobian(log: Log, request: Request, target: Tensor, source: Tensor, vectorize: bool) -> list[Tensor | None]:
    """Return the derivative of each row of the target by the same row of the source."""
    if request.left_out:
        return [None]
    shape = tf.shape(target)
    width = tf.reduce_prod(shape[1:])
    columns = tf.reshape(tf.eye(width, dtype=target.dtype), tf.concat([[width, 1], shape[1:]], 0))
    seeds = tf.broadcast_to(columns, tf.concat([[width], shape], 0))
    (stacked,) = _stack(log, request, seeds, vectorize, None)
    if stacked is None:
        return [None]
    by_row = tf.transpose(tf.reshape(stacked, tf.stack([width, shape[0], -1])), [1, 0, 2])
    return [tf.reshape(by_row, tf.concat([shape, tf.shape(source)[1:]], 0))]


def _stack(log: Log, request: Request, seeds: Tensor, vectorize: bool, chunk: int | None) -> list[Tensor | None]:
    found: list[Tensor | None] = [None] * len(request.sources)
    for positions, question in request.questions():
        if chunk is None:
            stacked = rows(log.recording, question, seeds, log.operations, vectorize)
        else:
            pieces = [
                rows(log.recording, question, seeds[start : start + chunk], log.operations, vectorize)
                for start in range(0, max(len(seeds), 1), chunk)
            ]
            stacked = [None if column[0] is None else tf.concat(column, 0) for column in zip(*pieces, strict=True)]
        for position, grad in zip(positions, stacked, strict=True):
            found[position] = grad
    return found


def jvp(log: Log, request: Request, target: Tensor, tangents: list[Tensor]) -> list[Tensor | None]:
    """Return the movement of the target along the tangents, as the only item of a list."""
    if request.left_out:
        return [None]
    with log.provisional():
        # A gradient is linear in what flows in, so its derivative by that is the product sought.
        seed = tf.ones_like(target)
        moved = dot(solve(log, request._replace(seeds=(seed,))), tangents)
        if moved is None:
            return [None]
        log.refresh()
        return solve(
            log, _of(log, moved, request)._replace(sources=((log.take_part(seed),),), through=(any(request.through),))
        )


def hvp(log: Log, request: Request, sources: Parts, vectors: list[Tensor]) -> list[Tensor | None]:
    """Return the product of the Hessian with the vectors, for each source."""
    with log.provisional():
        first = solve(log, request)
        moved = dot(first, vectors)
        if moved is None:
            return [None] * len(first)
        log.refresh()
        second = solve(log, _of(log, moved, request))
    return [
        zeros_like(part) if product is None and grad is not None else product
        for part, grad, product in zip(sources.flat(), first, second, strict=True)
    ]


def hessian(log: Log, request: Request, sources: Parts) -> list[list[Tensor]]:
    """Return all blocks of the Hessian."""
    with log.provisional():
        first = [None if grad is None else tf.convert_to_tensor(grad) for grad in solve(log, request)]
        log.refresh()
        return [
            _hessian_row(log, grad, request, sources, part) for grad, part in zip(first, sources.flat(), strict=True)
        ]


def _hessian_row(log: Log, grad: Tensor | None, request: Request, sources: Parts, part: Any) -> list[Tensor]:
    found: list[Tensor | None] = [None] * len(sources.flat())
    if grad is not None:
        found = jacobian(log, _of(log, grad, request), grad, True, None)
    return [
        zeros([*part.shape, *other.shape], part.dtype) if block is None else block
        for block, other in zip(found, sources.flat(), strict=True)
    ]


def _of(log: Log, target: Tensor, request: Request) -> Request:
    """Return the request for the derivative of something that has just been computed, by the same sources."""
    return request._replace(targets=(log.take_part(target),), seeds=(tf.ones_like(target),), derived_from=())


def as_matrix(blocks: list[list[Tensor]], sources: Parts) -> Tensor:
    """Return the blocks of a Hessian as one matrix."""
    sizes = [part.shape.num_elements() for part in sources.flat()]
    flat = [
        tf.concat([tf.reshape(block, [height, width]) for block, width in zip(row, sizes, strict=True)], 1)
        for row, height in zip(blocks, sizes, strict=True)
    ]
    return tf.concat(flat, 0)


# ------------------------------------------------------------------ what users hand in


def vectors_for(sources: Parts, given: Any, role: str) -> list[Tensor]:
    """Return the vectors, one for each source and in its shape, or raise."""
    # Constants, even where they are on the tape: the product is with what they are, not with where they came from.
    parts, items = sources.flat(), tf.nest.flatten(given)
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
            "`loss = tf.reduce_sum(target)`, or ask for each element."
        )


def check_batches(target: Tensor, source: Any) -> None:
    """Raise unless target and source have the same number of rows, and rows are not numbers."""
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
