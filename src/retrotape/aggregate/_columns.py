"""The gradients of several losses with respect to one variable: a column, as one block of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrotape._types import Gradient, Tensor
from retrotape.grads import sparse
from retrotape.tf.core import EagerTensor, eager_dtype, shape_of, tf

_EAGER, _NONE = frozenset((EagerTensor, type(None))), id(None)


class Column(NamedTuple):
    """The gradients of all losses with respect to one variable.

    Attributes:
      key: The variable.
      grads: One for each loss, None where there is no path; empty if they are stacked.
      stacked: All of them as one tensor, along the first dimension; None if they are apart.
    """

    key: Any
    grads: tuple[Gradient, ...] = ()
    stacked: Tensor | None = None

    def present(self) -> int:
        """Return how many losses have a gradient."""
        if self.stacked is not None:
            return self.stacked.shape[0]
        return len(self.grads) - list(map(id, self.grads)).count(_NONE)

    def row(self, number: int) -> Gradient:
        """Return the gradient of one loss."""
        return self.grads[number] if self.stacked is None else self.stacked[number]

    def tensors(self) -> list[Tensor]:
        """Return the tensors of it."""
        if self.stacked is not None:
            return [self.stacked]
        if _EAGER.issuperset(map(type, self.grads)):
            return [grad for grad in self.grads if grad is not None]
        return [tensor for grad in self.grads for tensor in _tensors(grad)]

    def spec(self) -> ColumnSpec:
        """Return everything but the numbers, and how many slices sparse gradients have."""
        if self.stacked is not None:
            return ColumnSpec((), ("stacked", tuple(self.stacked.shape), self.stacked.dtype))
        return ColumnSpec(tuple(map(_spec, self.grads)))


def _spec(grad: Gradient) -> tuple[Any, ...] | None:
    if type(grad) is EagerTensor:
        return "dense", shape_of(grad), eager_dtype(grad)
    if grad is None:
        return None
    if sparse.is_sparse(grad):
        return "sparse", tuple(grad.shape), grad.dtype, grad.indices.dtype
    return "dense", tuple(grad.shape), grad.dtype


def _tensors(grad: Gradient) -> list[Tensor]:
    if grad is None:
        return []
    return [grad.values, grad.indices] if sparse.is_sparse(grad) else [grad]


class ColumnSpec(NamedTuple):
    """What columns have in common that are computed by the same ops: for each gradient, kind, shape and dtypes."""

    grads: tuple[tuple[Any, ...] | None, ...]
    stacked: tuple[Any, ...] | None = None

    def tensor_specs(self) -> list[tf.TensorSpec]:
        """Return the types of the tensors of such a column."""
        found = []
        for spec in [self.stacked] if self.stacked else self.grads:
            if spec is not None and spec[0] == "sparse":
                _, shape, dtype, kind = spec
                found += [tf.TensorSpec([None, *shape[1:]], dtype), tf.TensorSpec([None], kind)]
            elif spec is not None:
                found.append(tf.TensorSpec(*spec[1:]))
        return found

    def column(self, tensors: Iterator[Tensor]) -> Column:
        """Return a column of the next of these tensors, without a key."""
        if self.stacked:
            return Column(None, stacked=next(tensors))
        grads: list[Gradient] = []
        for spec in self.grads:
            if spec is None:
                grads.append(None)
            elif spec[0] == "sparse":
                grads.append(tf.IndexedSlices(next(tensors), next(tensors), tf.constant(spec[1])))
            else:
                grads.append(next(tensors))
        return Column(None, tuple(grads))


class Block(NamedTuple):
    """A column as a matrix: one row for each loss, in a dtype to compute in.

    Attributes:
      values: The matrix.
      shape: The shape of what one row stands for.
      dtype: The dtype of the gradients.
      indices: Of sparse gradients, the slices that occur in any of them; None for dense ones.
      dense_shape: Of sparse gradients, the shape of the variable.
    """

    values: Tensor
    shape: Any
    dtype: Any
    indices: Tensor | None = None
    dense_shape: Tensor | None = None

    def unflatten(self, vector: Tensor) -> Gradient:
        """Return a vector of the length of a row as a gradient."""
        grad = tf.cast(tf.reshape(vector, self.shape), self.dtype)
        return grad if self.indices is None else tf.IndexedSlices(grad, self.indices, self.dense_shape)


def block_of(column: Column) -> Block:
    """Return a column as a matrix; a missing gradient is a row of zeros."""
    if column.stacked is not None:
        return _dense_block(column.stacked)
    there = [grad for grad in column.grads if grad is not None]
    dtype = sparse.common(*(grad.dtype for grad in there))
    if all(map(sparse.is_sparse, there)):
        return _sparse_block(column.grads, dtype)
    given = [None if grad is None else tf.cast(tf.convert_to_tensor(grad), dtype) for grad in column.grads]
    zeros = next(tf.zeros_like(grad) for grad in given if grad is not None)
    return _dense_block(tf.stack([zeros if grad is None else grad for grad in given]))


def _dense_block(stacked: Tensor) -> Block:
    wide = tf.cast(stacked, sparse.wide(stacked.dtype))
    values = tf.reshape(wide, [stacked.shape[0], tf.TensorShape(stacked.shape[1:]).num_elements()])
    return Block(values, stacked.shape[1:], stacked.dtype)


def _sparse_block(grads: Sequence[Gradient], dtype: Any) -> Block:
    there = [grad for grad in grads if grad is not None]
    kind = there[0].indices.dtype
    indices, places = tf.unique(tf.concat([tf.cast(grad.indices, kind) for grad in there], 0))
    count, rows, start = tf.size(indices), [], 0
    for grad in grads:
        if grad is None:
            rows.append(tf.zeros(tf.concat([[count], tf.shape(there[0].values)[1:]], 0), dtype))
            continue
        own = places[start : start + tf.size(grad.indices)]
        start += tf.size(grad.indices)
        rows.append(tf.math.unsorted_segment_sum(tf.cast(grad.values, dtype), own, count))
    stacked = tf.stack(rows)
    wide = tf.cast(stacked, sparse.wide(dtype))
    shape = tf.concat([[count], tf.shape(stacked)[2:]], 0)
    return Block(tf.reshape(wide, [len(grads), -1]), shape, dtype, indices, there[0].dense_shape)


def gramian_of(blocks: Sequence[Block], rows: int) -> Tensor:
    """Return the inner products of the rows with each other, summed over blocks, as float64.

    They are computed in single precision only where that makes no difference: no product overflows or gets lost, and
    the rows are far from dependent. Rounding errors in products of nearly opposite rows would change weights at will.
    """
    if not blocks:
        return tf.zeros([rows, rows], tf.float64)
    dtypes = {block.values.dtype for block in blocks}
    if dtypes != {tf.float32} or rounds_products():
        return exact_gramian(blocks, rows)
    quick = tf.cast(tf.add_n([_products(block.values) for block in blocks]), tf.float64)
    return tf.cond(_is_safe(quick, rows), lambda: quick, lambda: exact_gramian(blocks, rows))


def _is_safe(gramian: Tensor, rows: int) -> Tensor:
    """Return whether a Gramian of single precision can be used."""
    squares = tf.linalg.diag_part(gramian)
    in_range = tf.reduce_all(tf.math.is_finite(squares)) & (tf.reduce_min(squares) > _SMALL)
    norms = tf.sqrt(tf.where(in_range, squares, tf.ones_like(squares)))
    unit = tf.where(in_range, gramian, tf.eye(rows, dtype=tf.float64)) / norms[:, None] / norms[None, :]
    bound = _FAR * rows * float(np.finfo(np.float32).eps)
    return in_range & (tf.reduce_min(tf.linalg.eigvalsh(unit)) > bound)


def rounds_products() -> bool:
    """Return whether products of float32 matrices may be computed in less: with TensorFloat-32, on a GPU."""
    is_on = tf.config.experimental.tensor_float_32_execution_enabled()
    return bool(is_on and tf.config.list_logical_devices("GPU"))


def exact_gramian(blocks: Iterable[Block], rows: int, branches: bool = True) -> Tensor:
    """Return the same, computed in double precision: products of single precision are exact then.

    Args:
      blocks: The blocks.
      rows: How many rows they have.
      branches: Whether control flow may depend on values: it saves a look at all numbers.
    """
    blocks = list(blocks)
    if not blocks:
        return tf.zeros([rows, rows], tf.float64)
    found = tf.add_n([_products(tf.cast(block.values, _double(block.values.dtype))) for block in blocks])
    squares = tf.linalg.diag_part(found)

    def checked() -> Tensor:  # what it refers to is held until then: not the numbers in double precision
        largest = tf.reduce_max(tf.stack([tf.cast(_largest(block.values), tf.float64) for block in blocks]), 0)
        is_lost = (largest > 0.0) & (squares < _SMALLEST)
        return tf.linalg.set_diag(found, tf.where(is_lost, tf.constant(np.nan, tf.float64), squares))

    return tf.cond(tf.reduce_any(squares < _SMALLEST), checked, lambda: found) if branches else checked()


def is_finite(values: Tensor) -> Tensor:
    """Return which numbers are finite, also complex ones."""
    return tf.math.is_finite(tf.abs(values) if values.dtype.is_complex else values)


def _largest(values: Tensor) -> Tensor:
    """Return the largest number of each row, by size; zero if there is none."""
    if values.shape[1] == 0:
        return tf.zeros([values.shape[0]], values.dtype.real_dtype)
    if values.dtype.is_complex:
        return tf.reduce_max(tf.abs(values), 1)
    return tf.maximum(tf.reduce_max(values, 1), -tf.reduce_min(values, 1))


def precision_of(columns: Sequence[Column], rows: int) -> float:
    """Return the relative size of errors in the Gramian of some columns: rows are rounded, their products are not."""
    dtypes = {tensor.dtype for column in columns for tensor in column.tensors()}
    found = [float(np.finfo(sparse.wide(one).real_dtype.as_numpy_dtype).eps) for one in dtypes if not one.is_integer]
    return max(float(np.finfo(np.float64).eps), rows * max(found, default=0.0) ** 2)


_FAR = 1e4  # the smallest eigenvalue of rows of norm one that are far from dependent, in units of rounding errors
_SMALLEST = 1e-280  # the same in double precision
_SMALL = 1e-24  # a square, in single precision, whose parts may have been lost


def _double(dtype: Any) -> Any:
    return tf.complex128 if dtype.is_complex else tf.float64


def _products(values: Tensor) -> Tensor:
    product = tf.matmul(values, values, adjoint_b=True)
    return tf.math.real(product) if values.dtype.is_complex else product
