"""Eigenvalues of Gramians."""

from __future__ import annotations

from typing import NamedTuple

from retrotape._types import Tensor
from retrotape.tf.core import tf


class Eigen(NamedTuple):
    """The eigenvalues of a positive semidefinite matrix, in ascending order, and its eigenvectors, as columns.

    Attributes:
      values: The eigenvalues; one where rounding alone may have made it.
      vectors: The eigenvectors.
      kept: Which eigenvalues are not zero, as numbers.
    """

    values: Tensor
    vectors: Tensor
    kept: Tensor

    @property
    def rank(self) -> Tensor:
        """How many eigenvalues are not zero."""
        return tf.reduce_sum(self.kept)

    def times(self, vector: Tensor, power: float) -> Tensor:
        """Return a power of the matrix times a vector; what the matrix maps to zero is left out."""
        parts = tf.linalg.matvec(self.vectors, vector, transpose_a=True)
        return tf.linalg.matvec(self.vectors, parts * self.kept * self.values**power)


def eigen_of(matrix: Tensor, precision: float) -> Eigen:
    """Return eigenvalues and eigenvectors; those below the rounding errors of the largest count as zero."""
    values, vectors = tf.linalg.eigh((matrix + tf.linalg.matrix_transpose(matrix)) / 2.0)
    kept = values > matrix.shape[-1] * precision * values[-1]
    return Eigen(tf.where(kept, values, tf.ones_like(values)), vectors, tf.cast(kept, tf.float64))
