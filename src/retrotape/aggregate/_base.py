"""What all methods have in common: from rows to one gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple

from retrotape._types import Gradient, Tensor
from retrotape.aggregate._columns import Block, Column, is_finite, rounds_products
from retrotape.aggregate._combined import Combined
from retrotape.aggregate._replicas import replicas, sum_over_replicas
from retrotape.aggregate._rows import Rows
from retrotape.aggregate._shared import Parts, split
from retrotape.errors import CombinationOverflowError, NonfiniteRowError, ShapeMismatchError
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
        if made.checks:
            made, parts = _after_checks(made, parts)
        return _assemble(self, rows, parts, made if count == 1 else made.share(count))

    def _key(self, *kind: Hashable) -> Hashable | None:
        """Return what functions that are made for this method depend on: its class and its parameters, and `kind`.

        None for a class of user code, which may read anything, and if a parameter may change unnoticed.
        """
        own = {name: value for name, value in vars(self).items() if name != "_counter"}
        if not type(self).__module__.startswith(__package__ + ".") or not all(map(_is_plain, own.values())):
            return None
        return type(self), tuple(own.items()), *kind

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
    """What a method makes of the shared columns.

    Attributes:
      grads: The gradient of each.
      weights: The weight of each loss, if it has any.
      converged: Whether they were found.
      details: What else to tell, by name.
      extra: The gradients of variables of the method itself.
      checks: Inside a graph, the ops that raise if something is not finite.
    """

    grads: Sequence[Gradient]
    weights: Tensor | None = None
    converged: Any = True
    details: dict[str, Any] | None = None
    extra: Sequence[tuple[Any, Gradient]] = ()
    checks: Sequence[Any] = ()

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


def _after_checks(made: Made, parts: Parts) -> tuple[Made, Parts]:
    """Return the same, after the checks: nothing may be assigned before it is known that all gradients are finite."""
    with tf.control_dependencies(made.checks):
        grads = [sparse.on_values(grad, tf.identity) for grad in made.grads]
        own = [
            one._replace(
                grads=tuple(sparse.on_values(grad, tf.identity) for grad in one.grads),
                stacked=None if one.stacked is None else tf.identity(one.stacked),
            )
            for one in parts.own
        ]
    return made._replace(grads=grads), parts._replace(own=own)


def weighted_sums(blocks: Iterable[Block], weights: Tensor) -> list[Gradient]:
    """Return the weighted sum of the rows of each block."""
    return [block.unflatten(_weighted_sum(block.values, tf.cast(weights, block.values.dtype))) for block in blocks]


def _weighted_sum(values: Tensor, weights: Tensor) -> Tensor:
    if rounds_products():
        return tf.add_n([value * weight for value, weight in zip(tf.unstack(values), tf.unstack(weights), strict=True)])
    return tf.linalg.matvec(values, weights, transpose_a=True)


def finite_rows(blocks: Sequence[Block], own: Sequence[Column], count: int) -> Tensor:
    """Return which rows are finite in all blocks, and in the columns of variables that are not shared."""
    each = [tf.reduce_all(is_finite(block.values), 1) for block in blocks]
    each += [finite_own(own, count)] if own else []
    return tf.reduce_all(tf.stack(each), 0) if each else tf.ones([count], tf.bool)


def finite_own(own: Sequence[Column], count: int) -> Tensor:
    """Return for which losses the gradients with respect to variables that are not shared are finite."""
    found: list[list[Tensor]] = [[] for _ in range(count)]
    for column in own:
        for number, fine in enumerate(found):
            grad = column.row(number)
            if grad is not None:
                fine.append(tf.reduce_all(is_finite(sparse.values_of(grad))))
    return tf.stack([tf.reduce_all(tf.stack(fine)) if fine else tf.constant(True) for fine in found])


def all_finite(grads: Sequence[Gradient]) -> Tensor:
    """Return whether all numbers of gradients are finite."""
    each = [tf.reduce_all(is_finite(sparse.values_of(grad))) for grad in grads]
    return tf.reduce_all(tf.stack(each)) if each else tf.constant(True)


def refuse_nonfinite(rows_fine: Tensor, is_fine: Tensor, names: Sequence[Any]) -> list[Any]:
    """Raise if a row, or what was made of the rows, is not finite; inside a graph, return the ops that do.

    Args:
      rows_fine: Which rows are finite.
      is_fine: Whether all of them are, and the result is.
      names: The names of the losses.
    """
    if not tf.executing_eagerly():
        shown = ", ".join(map(str, names))
        text = f"The gradient of a loss is not finite: print(tape.first_nonfinite(loss)). Whether it is, for {shown}:"
        first = tf.debugging.Assert(tf.reduce_all(rows_fine), [text, rows_fine])
        with tf.control_dependencies([first]):
            return [first, tf.debugging.Assert(is_fine, [str(CombinationOverflowError())])]
    if not bool(is_fine):
        if not bool(tf.reduce_all(rows_fine)):
            raise NonfiniteRowError([name for name, fine in zip(names, rows_fine, strict=True) if not fine])
        raise CombinationOverflowError
    return []
