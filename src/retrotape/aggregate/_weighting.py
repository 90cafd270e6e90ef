"""Methods that give each loss a weight: from the inner products of the gradients to their weighted sum."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from retrotape._types import Gradient, Tensor
from retrotape.aggregate._base import Aggregator, Made, Nonfinite, Parts, finite_rows, refuse_nonfinite, weighted_sums
from retrotape.aggregate._columns import Block, Column, block_of, exact_gramian, gramian_of, precision_of
from retrotape.aggregate._functions import run
from retrotape.aggregate._losses import check_positive, values_of
from retrotape.aggregate._rows import Rows
from retrotape.aggregate._solve import Problem, Solution, nnls
from retrotape.errors import AggregationWarning, ShapeMismatchError
from retrotape.record import stacklevel
from retrotape.tf import hook_table
from retrotape.tf.core import as_is, stock_tape_listens, tf

_MANY = 16  # losses, above which SciPy's solver is faster than the one inside graphs


class Weighting(Aggregator):
    """A method that gives each loss a weight, which depends on the inner products of the gradients.

    A method of your own defines `solve`. It has to be hashable by its parameters, as a frozen dataclass is.

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

        found = Checked(*run(compute, (self._key(), "weights", precision), (), tf.nest.flatten(given)))
        return self._settled(found, Problem(precision=precision, **given), names, "raise").values

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

    def _checked(self, problem: Problem) -> Checked:
        """Return the weights; NaN if a row is not finite."""
        is_finite = tf.math.is_finite(tf.linalg.diag_part(problem.gramian))
        fine = tf.reduce_all(is_finite)
        if problem.losses is not None:
            is_finite &= tf.math.is_finite(problem.losses)
            fine = tf.reduce_all(is_finite & (problem.losses > (0.0 if self.needs_positive_losses else -np.inf)))
        safe = tf.where(fine, problem.gramian, tf.eye(problem.size, dtype=tf.float64))  # solvers do not end on NaN
        found = self.solve(problem._replace(gramian=safe))
        values = tf.where(fine, found.values, tf.constant(np.nan, tf.float64))
        state = tuple(tf.where(fine, new, old) for new, old in zip(found.state, problem.state, strict=True))
        return Checked(values, tf.reduce_all(found.converged), is_finite, state)

    def _settled(self, found: Checked, problem: Problem, names: Sequence[Any], nonfinite: Nonfinite) -> Checked:
        """Raise where a row is not finite; if the weights were not found, take those of SciPy's solver, or warn."""
        if not tf.executing_eagerly():
            if nonfinite == "raise":
                refuse_nonfinite(found.is_finite, names)
            self._write(found.state)
            return found
        if bool(found.is_fine()):
            self._write(found.state)
            return found
        if nonfinite == "raise":
            refuse_nonfinite(found.is_finite, names)
        elif not bool(tf.reduce_all(found.is_finite)):
            return found
        if self.uses_nnls and nnls() is not None:
            found = self._checked(problem)  # in eager code, solvers are those of SciPy
        if not bool(found.converged):
            lacks_scipy = self.uses_nnls and nnls() is None
            warnings.warn(AggregationWarning(str(self), self.fallback, lacks_scipy), stacklevel=stacklevel())
        self._write(found.state)
        return found

    def _combine(self, rows: Rows, parts: Parts, nonfinite: Nonfinite) -> Made:
        given = self._given(rows.losses, rows.names)
        columns, count = parts.shared, len(rows)
        if self._prefers_nnls(count):
            problem = Problem(_gramian(columns, count), float(np.finfo(np.float64).eps), **given)
            found = self._settled(self._checked(problem), problem, rows.names, nonfinite)
        else:
            found, problem, grads = self._whole(columns, count, given)
            settled = self._settled(found, problem, rows.names, nonfinite)
            if settled is found:
                return Made(grads, found.values, found.converged, extra=self._extra(given))
            found = settled
        sums = _sums_of(columns, found.values)
        return Made(sums, found.values, bool(found.converged), extra=self._extra(given))

    def _whole(
        self, columns: list[Column], count: int, given: dict[str, Any]
    ) -> tuple[Checked, Problem, list[Gradient]]:
        """Return weights and gradients, computed together."""
        precision = precision_of(columns)
        if self._is_exact(count):  # then only the rows have rounding errors, not their squares
            precision = max(float(np.finfo(np.float64).eps), count * precision**2)

        def compute(columns: list[Column], others: list[Tensor]) -> Any:
            blocks = list(map(block_of, columns))
            gramian = self._gramian(blocks, count)
            found = self._checked(Problem(gramian, precision, **tf.nest.pack_sequence_as(given, others)))
            return tuple(found), gramian, weighted_sums(blocks, found.values)

        found, gramian, grads = run(compute, (self._key(), "combined", count), columns, tf.nest.flatten(given))
        return Checked(*found), Problem(gramian, precision, **given), grads

    def _gramian(self, blocks: Sequence[Block], count: int) -> Tensor:
        if not self.needs_gramian:
            return _no_gramian(blocks, count)
        return exact_gramian(blocks, count) if self._is_exact(count) else gramian_of(blocks, count)

    def _is_exact(self, count: int) -> bool:
        """Return whether inner products are computed in double precision; rounding errors grow with their number."""
        return self.needs_exact or count > _MANY

    def _prefers_nnls(self, count: int) -> bool:
        """Return whether to solve in eager code: faster for many losses, but nothing records it."""
        is_plain = tf.executing_eagerly() and not hook_table.users and not stock_tape_listens()
        return self.uses_nnls and count > _MANY and is_plain and nnls() is not None


class Checked(NamedTuple):
    """Weights, whether they were found, which rows are finite, and the new state."""

    values: Tensor
    converged: Tensor
    is_finite: Tensor
    state: tuple[Tensor, ...] = ()

    def is_fine(self) -> Tensor:
        """Return whether they can be used as they are."""
        return self.converged & tf.reduce_all(self.is_finite)


def _gramian(columns: list[Column], count: int) -> Tensor:
    def compute(columns: list[Column], _: list[Tensor]) -> Any:
        return exact_gramian(map(block_of, columns), count)

    return run(compute, ("exact gramian", count), columns)


def _no_gramian(blocks: Sequence[Block], count: int) -> Tensor:
    """Return zeros, and on the diagonal NaN for rows that are not finite: faster than inner products."""
    return tf.linalg.diag(
        tf.where(finite_rows(blocks, count), tf.zeros([], tf.float64), tf.constant(np.nan, tf.float64))
    )


def _sums_of(columns: list[Column], weights: Tensor) -> list[Gradient]:
    def compute(columns: list[Column], others: list[Tensor]) -> Any:
        return weighted_sums(map(block_of, columns), others[0])

    return run(compute, "weighted sums", columns, [weights])
