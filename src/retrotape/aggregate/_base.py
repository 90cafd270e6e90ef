"""What all methods have in common: from rows to one gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple

from retrotape._types import Gradient, Tensor
from retrotape.aggregate._columns import Block, Column, block_of
from retrotape.aggregate._combined import Combined
from retrotape.aggregate._functions import run
from retrotape.aggregate._replicas import replicas, sum_over_replicas
from retrotape.aggregate._rows import Rows
from retrotape.aggregate._shared import Parts, split
from retrotape.errors import NonfiniteRowError, ShapeMismatchError
from retrotape.grads import sparse
from retrotape.tf.core import as_is, tf

Nonfinite = Literal["raise", "keep"]


class Aggregator(ABC):
    """A method that makes one gradient of those of several losses: call it with the rows of `tape.backward_each`.

    Variables that only one loss depends on get the gradient of that loss; all others are shared, and the method
    combines their gradients. Inside a tf.function everything is part of its graph. In the replicas of a strategy, the
    rows are summed over replicas first, and each replica gets an equal share of the result: optimizers sum them.
    """

    weighs_own = False  # whether the weight of a loss holds for the variables that only this loss depends on, too

    @as_is
    def __call__(
        self, rows: Rows | Sequence[Any], *, shared: Iterable[Any] | None = None, nonfinite: Nonfinite = "raise"
    ) -> Combined:
        """Combine rows.

        Args:
          rows: The rows, or a sequence of `Gradients`.
          shared: The variables to combine; by default those that more than one loss has a gradient for. Of any other
            variable, the gradients are summed.
          nonfinite: What to do about gradients that are not finite: "raise", which names the losses, or "keep", which
            makes the result NaN. Take "keep" with a `LossScaleOptimizer`, which skips such steps.

        Raises:
          NonfiniteRowError: If a gradient is not finite. Inside a tf.function the op that checks it raises
            `tf.errors.InvalidArgumentError`; compiled with XLA nothing raises, and the result is NaN.
        """
        rows = rows if isinstance(rows, Rows) else Rows(rows)
        if not len(rows):
            raise ShapeMismatchError("Got no rows to combine; give the gradients of one loss or more.")
        if nonfinite not in ("raise", "keep"):
            raise ValueError(f"nonfinite= must be 'raise' or 'keep', got {nonfinite!r}.")
        parts = split(rows.columns(), len(rows), shared)
        count = replicas()
        if count > 1:
            parts = parts._replace(shared=sum_over_replicas(parts.shared))
        made = self._combine(rows, parts, nonfinite)
        if nonfinite == "raise":
            made, parts = _without_nonfinite(made, parts, rows.names)
        return _assemble(self, rows, parts, made if count == 1 else made.share(count))

    def _key(self) -> Hashable:
        """Return what functions that are made for this method depend on: its class and its parameters.

        A method with attributes that may change unnoticed has a key of its own each time.
        """
        own = {name: value for name, value in vars(self).items() if name != "_counter"}
        if not all(map(_is_plain, own.values())):
            return object()
        return type(self), tuple(own.items())

    def __str__(self) -> str:
        """Return the method with those of its parameters that are not the default ones."""
        own: Sequence[Any] = fields(self) if is_dataclass(self) else ()
        values = [(one, getattr(self, one.name)) for one in own if one.repr]
        shown = [f"{one.name}={value!r}" for one, value in values if value != one.default]
        return f"{type(self).__name__}({', '.join(shown)})"

    @abstractmethod
    def _combine(self, rows: Rows, parts: Parts, nonfinite: Nonfinite) -> Made:
        """Combine the shared columns."""


class Made(NamedTuple):
    """What a method makes of the shared columns; `extra` are the gradients of variables of the method itself."""

    grads: Sequence[Gradient]
    weights: Tensor | None = None
    converged: Any = True
    details: dict[str, Any] | None = None
    extra: Sequence[tuple[Any, Gradient]] = ()

    def share(self, count: int) -> Made:
        """Return the share of one of several replicas."""
        return self._replace(
            grads=[sparse.scale(grad, 1.0 / count) for grad in self.grads],
            extra=[(key, sparse.scale(grad, 1.0 / count)) for key, grad in self.extra],
        )


def _assemble(method: Aggregator, rows: Rows, parts: Parts, made: Made) -> Combined:
    weights = tf.unstack(made.weights) if method.weighs_own and made.weights is not None else None
    grads: dict[Any, Gradient] = dict.fromkeys(map(id, parts.missing))
    grads.update((id(column.key), _own_gradient(column, weights)) for column in parts.own)
    grads.update((id(column.key), grad) for column, grad in zip(parts.shared, made.grads, strict=True))
    keys = [column.key for column in rows.columns()]
    found = Combined.of_query(
        [*keys, *(key for key, _ in made.extra)], [*map(grads.get, map(id, keys)), *(grad for _, grad in made.extra)]
    )
    return found.explained(
        method,
        rows.names,
        made.weights,
        [column.key for column in parts.shared],
        made.converged,
        made.details or {},
        [pair for row in rows for pair in row.reasons()] if parts.missing else (),
    )


def _own_gradient(column: Column, weights: Sequence[Tensor] | None) -> Gradient:
    """Return the gradient of the loss that a variable belongs to; the sum if there are several."""
    if column.stacked is not None:
        return tf.reduce_sum(column.stacked if weights is None else _scaled(column.stacked, weights), 0)
    total = None
    for number, grad in enumerate(column.grads):
        if grad is not None:
            total = sparse.add(total, grad if weights is None else sparse.scale(grad, weights[number]))
    return total


def _scaled(stacked: Tensor, weights: Sequence[Tensor]) -> Tensor:
    factors = tf.reshape(tf.cast(tf.stack(weights), stacked.dtype), [-1] + [1] * (stacked.shape.rank - 1))
    return stacked * factors


_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else isinstance(value, _PLAIN)


def _without_nonfinite(made: Made, parts: Parts, names: Sequence[Any]) -> tuple[Made, Parts]:
    """Raise if a gradient of a variable that only one loss depends on is not finite.

    Inside a graph nothing may be assigned before it is known that all gradients are finite: they wait for the check.
    """
    own = parts.own

    def compute(columns: list[Column], _: list[Tensor]) -> Tensor:
        return finite_rows(list(map(block_of, columns)), len(names))

    check_own = refuse_nonfinite(run(compute, ("finite", len(names)), own), names) if own else None
    if tf.executing_eagerly():
        return made, parts
    values = [sparse.values_of(grad) for grad in made.grads if grad is not None]
    fine = tf.reduce_all([tf.reduce_all(tf.math.is_finite(tf.abs(one))) for one in values]) if values else True
    checks = [tf.debugging.Assert(fine, ["The gradient of a loss is not finite."])]
    checks += [] if check_own is None else [check_own]
    with tf.control_dependencies(checks):
        made = made._replace(grads=[sparse.on_values(grad, tf.identity) for grad in made.grads])
        kept = [one._replace(grads=tuple(sparse.on_values(grad, tf.identity) for grad in one.grads)) for one in own]
    return made, parts._replace(own=kept)


def weighted_sums(blocks: Iterable[Block], weights: Tensor) -> list[Gradient]:
    """Return the weighted sum of the rows of each block."""
    return [
        block.unflatten(tf.linalg.matvec(block.values, tf.cast(weights, block.values.dtype), transpose_a=True))
        for block in blocks
    ]


def finite_rows(blocks: Sequence[Block], count: int) -> Tensor:
    """Return which rows are finite in all blocks."""
    each = [tf.reduce_all(tf.math.is_finite(tf.abs(block.values)), 1) for block in blocks]
    return tf.reduce_all(tf.stack(each), 0) if each else tf.ones([count], tf.bool)


def refuse_nonfinite(is_finite: Tensor, names: Sequence[Any]) -> Any:
    """Raise if a row is not finite; inside a graph, return the op that does."""
    if tf.executing_eagerly():
        if not bool(tf.reduce_all(is_finite)):
            raise NonfiniteRowError([name for name, fine in zip(names, is_finite, strict=True) if not fine])
        return None
    shown = ", ".join(map(str, names))
    return tf.debugging.Assert(
        tf.reduce_all(is_finite), [f"The gradient of a loss is not finite. Whether it is, for {shown}:", is_finite]
    )
