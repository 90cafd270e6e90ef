"""Derivatives of many elements at once: full Jacobians, batch Jacobians, and per-example gradients."""

from __future__ import annotations

from typing import Any

from retrotape._types import Tensor
from retrotape.diagnose.missing import warn_of_targets
from retrotape.query import _derivatives as derivatives
from retrotape.query._base import QueryBase, query, recorded_in_graph
from retrotape.query._request import make_request
from retrotape.tf.core import tf, zeros
from retrotape.tf.nests import shape_tensor, single, take_apart, zeros_wanted

_NONE = tf.UnconnectedGradients.NONE


class Jacobians(QueryBase):
    """Derivatives of each element of a target."""

    @query
    def jacobian(
        self,
        target: Tensor,
        sources: Any,
        unconnected_gradients: tf.UnconnectedGradients = _NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
        *,
        through_updates: bool = False,
        chunk: int | None = None,
    ) -> Any:
        """Return the Jacobian of `target` with respect to each of `sources`: shape of target, then shape of source.

        Args:
          target: A tensor that was made while recording.
          sources: As for `gradient`.
          unconnected_gradients: As for `gradient`.
          through_updates: As for `gradient`.
          parallel_iterations: Accepted and ignored.
          experimental_use_pfor: Whether elements may be vectorized; the result is the same.
          chunk: The largest number of elements to vectorize at once, to bound memory. In a terminal, a progress bar
            appears on stderr after two seconds.

        Returns:
          The Jacobians in the structure of `sources`.

        >>> x = tf.constant([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> tape.jacobian(y, x).numpy().tolist()
        [[2.0, 0.0], [0.0, 4.0]]
        """
        fill = zeros_wanted(unconnected_gradients)
        target = single(target, "jacobian", "target")
        session = self._recorded()
        parts = take_apart(sources, "source")
        with recorded_in_graph(session):
            request = make_request(
                session, self._results, target, parts, None, through_updates, ones=False, leave_out=True
            )
            if request.left_out:
                warn_of_targets(request)
            found = self._solve(
                session, request, lambda: derivatives.jacobian(session, request, target, experimental_use_pfor, chunk)
            )
            if fill:
                found = [
                    zeros(tf.concat([shape_tensor(target), part.shape], 0), part.dtype) if grad is None else grad
                    for part, grad in zip(parts.flat, found, strict=True)
                ]
        return parts.pack(found)

    @query
    def batch_jacobian(
        self,
        target: Tensor,
        source: Tensor,
        unconnected_gradients: tf.UnconnectedGradients = _NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Tensor:
        """Return the Jacobian of each `target[i]` with respect to `source[i]`, if it depends on no other row.

        Args:
          target: A tensor of shape `[batch, ...]`, of rank at least two.
          source: A tensor of shape `[batch, ...]`, of rank at least two, or a list of one.
          unconnected_gradients: Accepted; as in TensorFlow, an unconnected source gives zeros.
          parallel_iterations: Accepted and ignored.
          experimental_use_pfor: As for `jacobian`.

        Returns:
          A tensor of shape `[batch, *target.shape[1:], *source.shape[1:]]`, in the structure of `source`.

        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> tape.batch_jacobian(y, x).numpy().tolist()
        [[[2.0, 0.0], [0.0, 4.0]], [[6.0, 0.0], [0.0, 8.0]]]
        """
        zeros_wanted(unconnected_gradients)
        target, part = single(target, "batch_jacobian", "target"), single(source, "batch_jacobian", "source")
        derivatives.check_batches(target, part)
        session = self._recorded()
        parts = take_apart(source, "source")
        with recorded_in_graph(session):
            request = make_request(session, self._results, target, parts, ones=False, leave_out=True)
            if request.left_out:
                warn_of_targets(request)
            (found,) = self._solve(
                session,
                request,
                lambda: derivatives.batch_jacobian(session, request, target, part, experimental_use_pfor),
            )
            if found is None:
                found = zeros(tf.concat([shape_tensor(target), shape_tensor(part)[1:]], 0), target.dtype)
        return tf.nest.pack_sequence_as(source, [found])

    @query
    def per_example(self, losses: Tensor, sources: Any, *, chunk: int | None = None) -> Any:
        """Return the gradient of each element of a vector of losses with respect to each of `sources`.

        Args:
          losses: A tensor of shape `[batch]`.
          sources: As for `gradient`.
          chunk: The largest number of losses to vectorize at once, to bound memory.

        Returns:
          Tensors of shape `[batch, *source.shape]` in the structure of `sources`.

        >>> w = tf.Variable(2.0)
        >>> with rt.Tape() as tape:
        ...     losses = w * tf.constant([1.0, 3.0])
        >>> tape.per_example(losses, w).numpy().tolist()
        [1.0, 3.0]
        """
        losses = single(losses, "per_example", "target")
        derivatives.check_vector(losses)
        return self.jacobian(losses, sources, chunk=chunk)
