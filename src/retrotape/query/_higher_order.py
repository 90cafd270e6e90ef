"""Second derivatives, products with vectors, and derivatives with respect to earlier values of variables."""

from __future__ import annotations

from functools import partial
from typing import Any

from retrotape._types import Tensor
from retrotape.diagnose.missing import warn_of_targets
from retrotape.grads import in_order
from retrotape.query import _derivatives as derivatives
from retrotape.query._base import QueryBase, query, recorded_in_graph
from retrotape.query._request import make_request, versions_of
from retrotape.tf.nests import Parts, TensorRef, single, take_apart, unwrap
from retrotape.tf.version import Version, pick


class HigherOrder(QueryBase):
    """Higher derivatives, from the same flat trace: tapes need not be nested."""

    @query
    def jvp(self, target: Tensor, sources: Any, tangents: Any, *, through_updates: bool = False) -> Tensor:
        """Return the directional derivative of `target` as `sources` move along `tangents`.

        Args:
          target: A tensor that was made while recording.
          sources: As for `gradient`.
          tangents: One for each source, in its shape; or `Gradients` with these sources as keys.
          through_updates: As for `gradient`.

        Returns:
          A tensor in the shape of `target`; None if no source has a path.

        >>> x = tf.constant([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> tape.jvp(y, x, tf.constant([1.0, 10.0])).numpy().tolist()
        [2.0, 40.0]
        """
        target = single(target, "jvp", "target")
        session = self._recorded()
        parts = take_apart(sources, "source")
        vectors = derivatives.vectors_for(parts, self._in_order(tangents, parts), "tangent")
        with recorded_in_graph(session):
            request = make_request(session, self._results, target, parts, None, through_updates, leave_out=True)
            if request.left_out:
                warn_of_targets(request)
            compute = partial(derivatives.jvp, session, request, target, vectors)
            (found,) = self._solve(session, request, compute, "jvp", vectors)
        return found

    @query
    def hvp(self, target: Tensor, sources: Any, vectors: Any, *, through_updates: bool = False) -> Any:
        """Return the Hessian of `target` with respect to `sources`, times `vectors`, without computing the Hessian.

        Args:
          target: A scalar that was made while recording.
          sources: As for `gradient`.
          vectors: One for each source, in its shape; or `Gradients` with these sources as keys.
          through_updates: As for `gradient`.

        Returns:
          The products in the structure of `sources`; None for a source without a path.

        >>> x = tf.constant(2.0)
        >>> with rt.Tape() as tape:
        ...     y = x ** 3
        >>> float(tape.hvp(y, x, tf.constant(1.0)))
        12.0
        """
        target = single(target, "hvp", "target")
        derivatives.check_scalar(target, "hvp")
        session = self._recorded()
        parts = take_apart(sources, "source")
        given = derivatives.vectors_for(parts, self._in_order(vectors, parts), "vector")
        with recorded_in_graph(session):
            request = make_request(session, self._results, target, parts, through_updates=through_updates)
            compute = partial(derivatives.hvp, session, request, parts, given)
            found = self._solve(session, request, compute, "hvp", given)
        return parts.pack(found)

    def _in_order(self, vectors: Any, sources: Parts) -> Any:
        keys = [self._tensor(item) if isinstance(item, TensorRef) else item for item in sources.items]
        return in_order(vectors, keys)

    @query
    def hessian(
        self,
        target: Tensor,
        sources: Any,
        *,
        whole: bool = False,
        through_updates: bool = False,
        chunk: int | None = None,
    ) -> Any:
        """Return the second derivatives of a scalar `target` with respect to `sources`.

        In a terminal, a progress bar appears on stderr after two seconds.

        Args:
          target: A scalar that was made while recording.
          sources: As for `gradient`.
          whole: Return one matrix over all elements of all sources, in the order of the flattened nest.
          through_updates: As for `gradient`.
          chunk: The largest number of rows to vectorize at once, to bound memory; 1024 by default.

        Returns:
          For one source, a tensor of its shape twice; for a nest, blocks in the structure of `sources`, nested twice;
          with `whole`, one matrix. Blocks without a path are zero.

        >>> x = tf.constant([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     y = x[0] ** 2 * x[1]
        >>> tape.hessian(y, x).numpy().tolist()
        [[4.0, 2.0], [2.0, 0.0]]
        """
        target = single(target, "hessian", "target")
        derivatives.check_scalar(target, "hessian")
        session = self._recorded()
        parts = take_apart(sources, "source")
        with recorded_in_graph(session):
            request = make_request(session, self._results, target, parts, through_updates=through_updates)
            found = self._solve(session, request, lambda: derivatives.hessian(session, request, parts, chunk, whole))
        if whole:
            return found[0]
        width = len(parts.flat)
        return parts.pack([parts.pack(found[start : start + width]) for start in range(0, len(found), width)])

    # ------------------------------------------------------------------ versions of variables

    @query
    def versions(self, variable: Any) -> tuple[Version, ...]:
        """Return every value that a variable had on this tape, oldest first.

        >>> v = tf.Variable(1.0)
        >>> with rt.Tape() as tape:
        ...     y = v * 2.0
        ...     _ = v.assign(5.0)
        >>> [float(version.value) for version in tape.versions(v)]
        [1.0, 5.0]
        """
        return versions_of(self._recorded(), unwrap(variable))

    @query
    def at(self, variable: Any, k: int) -> Version:
        """Return value number `k` of a variable, from the end if negative, as a source.

        Derivatives with respect to it pass through every later update.

        >>> v = tf.Variable(3.0)
        >>> with rt.Tape() as tape:
        ...     _ = v.assign(v * v)
        ...     y = v * 2.0
        >>> float(tape.gradient(y, tape.at(v, 0))), float(tape.gradient(y, tape.at(v, 1)))
        (12.0, 2.0)
        """
        return pick(self.versions(variable), k)
