"""Methods that give each loss a weight: from the inner products of the gradients to their weighted sum."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from retrotape._types import Gradient, Tensor
from retrotape.aggregate._base import (
    Aggregator,
    Made,
    Nonfinite,
    Parts,
    all_finite,
    finite_own,
    finite_rows,
    refuse_nonfinite,
    weighted_sums,
)
from retrotape.aggregate._columns import Block, Column, block_of, exact_gramian, gramian_of, precision_of
from retrotape.aggregate._functions import is_recorded, run
from retrotape.aggregate._losses import check_positive, values_of
from retrotape.aggregate._rows import Rows
from retrotape.aggregate._solve import Problem, Solution, nnls
from retrotape.errors import AggregationWarning, ShapeMismatchError
from retrotape.record import stacklevel
from retrotape.tf.core import as_is, tf

_MANY = 16  # losses, above which SciPy's solver is faster than the one inside graphs


class Weighting(Aggregator):
    """A method that gives each loss a weight, which depends on the inner products of the gradients.

    A method of your own defines `solve`. In eager code it runs op by op, as it may read anything.

    >>> class Shortest(rt.aggregate.Weighting):
    ...     def solve(self, problem):  # weights that are inverse to the norms
    ...         norms = tf.sqrt(tf.linalg.diag_part(problem.gramian))
    ...         return rt.aggregate.Solution(1.0 / norms, tf.constant(True))
    >>> w = tf.Variable([1.0, 2.0])
    >>> with rt.Tape() as tape:
    ...     losses = [4.0 * w[0], 2.0 * w[1]]
    >>> Shortest()(tape.backward_each(losses))[w].numpy().tolist()
    [1.0, 1.0]
    """

    needs_gramian: ClassVar[bool] = True  # whether weights depend on the gradients; if not, it has zeros, and NaN
    needs_losses: ClassVar[bool] = False  # whether they depend on the values of the losses
    needs_positive_losses: ClassVar[bool] = False
    needs_exact: ClassVar[bool] = False  # whether inner products are computed in double precision, also of other rows
    uses_nnls: ClassVar[bool] = False  # whether `solve` has problems that SciPy's solver solves
    fallback: ClassVar[str] = "each loss that was affected keeps its own gradient"  # where no weights are found

    @abstractmethod
    def solve(self, problem: Problem) -> Solution:
        """Return the weights, as float64, computed with ops that work inside graphs."""

    @as_is
    def weights(self, gramian: Tensor, losses: Tensor | Sequence[Tensor] | None = None) -> Tensor:
        """Return the weight of each loss.

        Args:
          gramian: The inner products of their gradients: `rows.gramian()` or `tape.gramian(losses)`.
          losses: The values of the losses, for methods that need them.

        >>> rt.aggregate.UPGrad().weights([[1.0, -0.5], [-0.5, 1.0]]).numpy().tolist()
        [0.75, 0.75]
        """
        gramian = tf.convert_to_tensor(gramian)
        if gramian.shape.rank != 2 or gramian.shape[0] != gramian.shape[1] or not gramian.dtype.is_floating:
            raise ShapeMismatchError(
                f"Got a Gramian of shape {gramian.shape} and dtype {gramian.dtype.name}; expected a square matrix of "
                "floats: `rows.gramian()`."
            )
        names = tuple(range(gramian.shape[0]))
        precision = float(np.finfo(gramian.dtype.as_numpy_dtype).eps)
        given = {"gramian": tf.cast(gramian, tf.float64), **self._given(losses, names)}

        def compute(_: list[Column], tensors: list[Tensor]) -> Any:
            return tuple(self._checked(Problem(precision=precision, **tf.nest.pack_sequence_as(given, tensors))))

        found = Checked(*run(compute, self._key("weights", precision), (), tf.nest.flatten(given)))
        found = self._final(found, lambda: Problem(precision=precision, **given), names, "raise")
        if tf.executing_eagerly():
            return found.values
        with tf.control_dependencies(refuse_nonfinite(found.is_finite, tf.reduce_all(found.is_finite), names)):
            return tf.identity(found.values)

    def _given(self, losses: Any, names: Sequence[Any]) -> dict[str, Any]:
        """Return what a problem has beside the Gramian."""
        given: dict[str, Any] = {"state": self._read(len(names)), "seed": self._next_seed()}
        if self.needs_losses:
            given["losses"] = values_of(losses, len(names), type(self).__name__)
        if self.needs_positive_losses:
            check_positive(given["losses"], names, type(self).__name__)
        return {name: value for name, value in given.items() if value is not None}

    # What methods with state, or random ones, define:

    def _read(self, size: int) -> tuple[Tensor, ...]:
        """Return the state for some losses."""
        return ()

    def _write(self, state: Sequence[Tensor]) -> None:
        """Set the state."""

    def _next_seed(self) -> Tensor | None:
        """Return two integers to draw random numbers from."""
        return None

    def _extra(self, given: dict[str, Any]) -> Sequence[tuple[Any, Gradient]]:
        """Return the gradients of variables of the method itself."""
        return ()

    def _checked(self, problem: Problem, own: Tensor | None = None) -> Checked:
        """Return the weights; NaN if a row is not finite. `own` tells which are, as for variables not shared."""
        is_finite = tf.math.is_finite(tf.linalg.diag_part(problem.gramian))
        is_finite = is_finite if own is None else is_finite & own
        fine = tf.reduce_all(is_finite)
        if problem.losses is not None:
            is_finite &= tf.math.is_finite(problem.losses)
            fine = tf.reduce_all(is_finite & (problem.losses > (0.0 if self.needs_positive_losses else -np.inf)))
        safe = tf.where(fine, problem.gramian, tf.eye(problem.size, dtype=tf.float64))  # solvers do not end on NaN
        found = self.solve(problem._replace(gramian=safe))
        values = tf.where(fine, found.values, tf.constant(np.nan, tf.float64))
        state = tuple(tf.where(fine, new, old) for new, old in zip(found.state, problem.state, strict=True))
        converged = tf.reduce_all(found.converged)
        return Checked(values, converged, is_finite, converged & tf.reduce_all(is_finite), state)

    def _final(
        self, found: Checked, problem: Callable[[], Problem], names: Sequence[Any], nonfinite: Nonfinite
    ) -> Checked:
        """Raise where something is not finite; if the weights were not found, take those of SciPy's solver, or warn."""
        if not tf.executing_eagerly() or bool(found.is_fine):
            self._write(found.state)
            return found
        if nonfinite == "raise" and (bool(found.converged) or not bool(tf.reduce_all(found.is_finite))):
            refuse_nonfinite(found.is_finite, found.is_fine, names)
        elif not bool(tf.reduce_all(found.is_finite)):
            return found
        if not bool(found.converged):
            if self.uses_nnls and nnls() is not None and not is_recorded():  # else results would be constants
                found = self._checked(problem())  # in eager code, solvers are those of SciPy
            if not bool(found.converged):
                lacks_scipy = self.uses_nnls and nnls() is None
                warnings.warn(AggregationWarning(str(self), self.fallback, lacks_scipy), stacklevel=stacklevel())
        self._write(found.state)
        return found

    def _combine(self, rows: Rows, parts: Parts, nonfinite: Nonfinite) -> Made:
        given = self._given(rows.losses, rows.names)
        columns, own = parts.shared, parts.own if nonfinite == "raise" else []
        if self._prefers_nnls(len(rows)):
            problem = Problem(*_inner_products(columns, own, len(rows)), **given)
            found = self._final(self._checked(problem), lambda: problem, rows.names, nonfinite)
        else:
            first, gramian, grads = self._whole(columns, own, len(rows), given)
            found = self._final(
                first, lambda: Problem(gramian, precision_of(columns, len(rows)), **given), rows.names, nonfinite
            )
            if found is first:
                return self._made(grads, found, given, rows.names if nonfinite == "raise" else None)
        grads, is_fine = _sums_of(columns, found.values)
        if nonfinite == "raise":
            refuse_nonfinite(found.is_finite, is_fine, rows.names)
        return self._made(grads, found, given)

    def _made(
        self, grads: Sequence[Gradient], found: Checked, given: dict[str, Any], names: Sequence[Any] | None = None
    ) -> Made:
        """Return the result; inside a graph with checks, if names are given."""
        is_eager = tf.executing_eagerly()
        checks = refuse_nonfinite(found.is_finite, found.is_fine, names) if names is not None and not is_eager else []
        converged = bool(found.converged) if is_eager else found.converged
        return Made(grads, found.values, converged, extra=self._extra(given), checks=checks)

    def _whole(
        self, shared: list[Column], own: list[Column], count: int, given: dict[str, Any]
    ) -> tuple[Checked, Tensor, list[Gradient]]:
        """Return weights, Gramian and gradients, computed together."""
        size = len(shared)

        def compute(columns: list[Column], others: list[Tensor]) -> Any:
            blocks = list(map(block_of, columns[:size]))
            gramian = self._gramian(blocks, count)
            problem = Problem(gramian, precision_of(columns[:size], count), **tf.nest.pack_sequence_as(given, others))
            found = self._checked(problem, finite_own(columns[size:], count) if columns[size:] else None)
            grads = weighted_sums(blocks, found.values)
            return tuple(found._replace(is_fine=found.is_fine & all_finite(grads))), gramian, grads

        kind = self._key("combined", count, size)
        found, gramian, grads = run(compute, kind, [*shared, *own], tf.nest.flatten(given))
        return Checked(*found), gramian, grads

    def _gramian(self, blocks: Sequence[Block], count: int) -> Tensor:
        if not self.needs_gramian:
            return _no_gramian(blocks, count)
        return exact_gramian(blocks, count) if self._is_exact(count) else gramian_of(blocks, count)

    def _is_exact(self, count: int) -> bool:
        """Return whether inner products are computed in double precision; rounding errors grow with their number."""
        return self.needs_exact or count > _MANY

    def _prefers_nnls(self, count: int) -> bool:
        """Return whether to solve in eager code: faster for many losses, but nothing records it."""
        return self.uses_nnls and count > _MANY and tf.executing_eagerly() and not is_recorded() and nnls() is not None


class Checked(NamedTuple):
    """Weights that were checked.

    Attributes:
      values: The weights.
      converged: Whether they were found.
      is_finite: Which rows are finite.
      is_fine: Whether all of that is so, and the result is finite: then it can be used as it is.
      state: The new state of the method.
    """

    values: Tensor
    converged: Tensor
    is_finite: Tensor
    is_fine: Tensor
    state: tuple[Tensor, ...] = ()


def _inner_products(shared: list[Column], own: list[Column], count: int) -> tuple[Tensor, float]:
    """Return the Gramian, with NaN for losses whose own gradients are not finite, and its precision."""
    size = len(shared)

    def compute(columns: list[Column], _: list[Tensor]) -> Any:
        found = exact_gramian(map(block_of, columns[:size]), count)
        if not columns[size:]:
            return found
        bad = tf.constant(np.nan, tf.float64)
        return tf.linalg.set_diag(found, tf.where(finite_own(columns[size:], count), tf.linalg.diag_part(found), bad))

    return run(compute, ("exact gramian", count, size), [*shared, *own]), precision_of(shared, count)


def _no_gramian(blocks: Sequence[Block], count: int) -> Tensor:
    """Return zeros, and on the diagonal NaN for rows that are not finite: faster than inner products."""
    bad = tf.constant(np.nan, tf.float64)
    return tf.linalg.diag(tf.where(finite_rows(blocks, (), count), tf.zeros([], tf.float64), bad))


def _sums_of(columns: list[Column], weights: Tensor) -> tuple[list[Gradient], Tensor]:
    """Return the weighted sum of each column, and whether all are finite."""

    def compute(columns: list[Column], others: list[Tensor]) -> Any:
        grads = weighted_sums(map(block_of, columns), others[0])
        return grads, all_finite(grads)

    return run(compute, "weighted sums", columns, [weights])
