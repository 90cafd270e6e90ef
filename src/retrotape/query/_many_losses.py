"""First derivatives of several losses: rows, and their inner products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from retrotape._types import Tensor
from retrotape.aggregate import Rows
from retrotape.diagnose.missing import warn_of_targets
from retrotape.execute import FEW, tracked
from retrotape.grads import Gradients
from retrotape.query._base import query
from retrotape.query._first_order import FirstOrder
from retrotape.query._jacobians import Jacobians
from retrotape.query._quick import quick_each
from retrotape.query._several import Together, batch_statistics, losses_and_seeds, sources_of
from retrotape.record import Session
from retrotape.tf.core import tf
from retrotape.tf.nests import TensorRef, has_derivative, take_apart, zeros_wanted

_NONE = tf.UnconnectedGradients.NONE


class ManyLosses(FirstOrder, Jacobians):
    """The gradients of several losses."""

    @query
    def backward_each(
        self,
        losses: Sequence[Any] | Mapping[Any, Any] | Tensor,
        wrt: Any = None,
        *,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = _NONE,
        through_updates: bool = False,
        since: int | None = None,
        chunk: int | None = None,
    ) -> Rows:
        """Return the gradient of each of several losses: the same as calling `backward` for each, but faster.

        Work that the losses share is done once, and values that were not kept are recomputed once.

        Args:
          losses: A list or a dictionary of losses, each as the target of `gradient`, or a vector of them. A vector of
            more than 16, the losses of the examples of a batch say, is vectorized, as by `per_example`.
          wrt: As for `backward`.
          output_gradients: The gradient of each of the losses in a list, the same for all.
          unconnected_gradients: As for `gradient`.
          through_updates: As for `gradient`.
          since: As for `gradient`.
          chunk: The largest number of losses to compute at once, to bound memory. In a terminal, a progress bar appears
            on stderr after two seconds.

        Returns:
          A sequence of `Gradients`, one for each loss; for a dictionary of losses, they are found by its keys too.

        Raises:
          ShapeMismatchError: If `losses` is a tensor, but not a vector of known size.

        >>> w = tf.Variable(3.0)
        >>> with rt.Tape() as tape:
        ...     losses = [w ** 2, 5.0 * w]
        >>> [float(grads[w]) for grads in tape.backward_each(losses)]
        [6.0, 5.0]
        """
        names, listed = _by_name(losses)
        session = self._recorded()
        sources = sources_of(session, wrt, self._tensor)
        options: dict[str, Any] = {"through_updates": through_updates, "since": since}
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk= takes a number of losses, one at least; got {chunk}.")
        if _is_long(listed, chunk) and since is None and output_gradients is None:
            stacked = self._stacked(session, listed, sources, unconnected_gradients, through_updates, chunk)
            if stacked is not None:
                return stacked
        options |= {"output_gradients": output_gradients, "unconnected_gradients": unconnected_gradients}
        if chunk is None or isinstance(listed, (tf.Tensor, TensorRef)):
            known = {"mixed_by": batch_statistics(session)} if isinstance(listed, tf.Tensor) else {}
            return Rows(self._each(session, listed, sources, **options), names, self._values(listed), **known)
        starts = tracked(range(0, len(listed), chunk), "losses")
        found = [self._each(session, listed[start : start + chunk], sources, **options) for start in starts]
        return Rows([row for some in found for row in some], names, self._values(listed))

    def _values(self, losses: Any) -> Any:
        """Return the values of losses, or a function that does, where they may have to be recomputed."""
        if any(isinstance(part, TensorRef) for part in tf.nest.flatten(losses)):
            return lambda: tf.nest.map_structure(
                lambda part: self._tensor(part) if isinstance(part, TensorRef) else part, losses
            )
        return losses

    def _stacked(
        self, session: Session, losses: Tensor, sources: list[Any], unconnected: Any, through: bool, chunk: int | None
    ) -> Rows | None:
        """Return the rows of a long vector of losses, which are computed together; None if it depends on nothing."""
        found = self.jacobian(losses, sources, unconnected, through_updates=through, chunk=chunk)
        if all(one is None for one in found):
            return None
        return Rows.from_stacked(sources, found, losses=self._values(losses), mixed_by=batch_statistics(session))

    def _each(
        self,
        session: Session,
        losses: Any,
        sources: list[Any],
        output_gradients: Any,
        unconnected_gradients: tf.UnconnectedGradients,
        through_updates: bool,
        since: int | None,
    ) -> list[Gradients]:
        options: dict[str, Any] = {"through_updates": through_updates, "since": since}
        given = losses_and_seeds(losses, output_gradients)
        zeros = zeros_wanted(unconnected_gradients)
        if session.graph is not None or len(given) < 2:  # a graph has all values, and must be read again for each query
            options["unconnected_gradients"] = unconnected_gradients
            return [self.backward(loss, sources, output_gradients=seed, **options) for loss, seed in given]
        plain = output_gradients is None and not zeros and not through_updates and since is None
        quick = quick_each(session, losses, sources) if plain else None
        known = None if quick is None else quick.gradients(self._results)
        if known is not None:
            return known
        together = Together(session, self._results, given, take_apart(sources, "source"), **options)
        for request in together.requests:
            if request.left_out:
                warn_of_targets(request)
        together.run()
        asked = [partial(together.row, number) for number in range(len(given))]
        found = [self._solve(session, request, row) for request, row in zip(together.requests, asked, strict=True)]
        explain = [partial(self._explain, session, loss, **options) for loss, _ in given]
        made = together.gradients(found, zeros, explain)
        if quick is not None:
            quick.learn_rows(together, found)
        return made

    @query
    def gramian(self, losses: Sequence[Any] | Mapping[Any, Any] | Tensor, wrt: Any = None) -> Tensor:
        """Return the inner products of the gradients of several losses, over the variables that they share.

        It is what methods of `rt.aggregate` compute weights from. The gradients are never held together, once the loop
        is warm; the gradient that weights lead to is one more call, `tape.backward(loss)` of the weighted sum.

        Args:
          losses: As for `backward_each`.
          wrt: As for `backward`.

        Returns:
          A matrix of float64, with a row and a column for each loss.

        >>> w = tf.Variable([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     losses = [3.0 * w[0], w[0] - w[1]]
        >>> weights = rt.aggregate.UPGrad().weights(tape.gramian(losses))
        >>> tape.gradient(losses, w, output_gradients=tf.unstack(tf.cast(weights, tf.float32))).numpy().tolist()
        [2.0, -0.5]
        """
        _, listed = _by_name(losses)
        session = self._recorded()
        sources = sources_of(session, wrt, self._tensor)
        alone = tf.distribute.in_cross_replica_context() or not tf.distribute.has_strategy()
        if session.graph is not None or _is_long(listed, None) or len(listed) < 2 or not alone:
            return self.backward_each(listed, sources).gramian()
        together = Together(session, self._results, losses_and_seeds(listed, None), take_apart(sources, "source"))
        return together.run_gramian() if together.is_plain else self.backward_each(listed, sources).gramian()


def _by_name(losses: Any) -> tuple[list[Any] | None, Any]:
    """Return the names of losses, None if they have none, and the losses as a list or a tensor."""
    if isinstance(losses, Mapping):
        return list(losses), list(losses.values())
    return None, losses if isinstance(losses, (list, tuple, tf.Tensor, tf.Variable, TensorRef)) else list(losses)


def _is_long(losses: Any, chunk: int | None) -> bool:
    """Return whether losses are a vector that is computed as a Jacobian."""
    if not isinstance(losses, (tf.Tensor, TensorRef)) or losses.shape.rank != 1 or losses.shape[0] is None:
        return False
    return has_derivative(losses) and (chunk is not None or losses.shape[0] > FEW)
