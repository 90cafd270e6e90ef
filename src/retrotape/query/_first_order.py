"""First derivatives: of one loss, and as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from retrotape.diagnose.missing import warn_of_targets, with_reasons
from retrotape.errors import TapeUseError
from retrotape.execute import stream
from retrotape.grads import Gradients
from retrotape.query._base import QueryBase, op_by_op, query, recorded_in_graph
from retrotape.query._quick import quick_gradient
from retrotape.query._request import fill_constants, make_request, refuse_outside, solve
from retrotape.query._several import sources_of
from retrotape.record import Session
from retrotape.tf.core import as_is, tf
from retrotape.tf.nests import take_apart, zeros_like, zeros_wanted

_NONE = tf.UnconnectedGradients.NONE
_Missing: TypeAlias = Literal["keep", "zero", "raise"]
_MISSING = get_args(_Missing)
_Item = TypeVar("_Item")


class FirstOrder(QueryBase):
    """First derivatives of anything that was recorded."""

    @query
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = _NONE,
        *,
        through_updates: bool = False,
        since: int | None = None,
        none: _Missing = "keep",
    ) -> Any:
        """Return the gradient of `target`, summed over its elements, with respect to each of `sources`.

        Args:
          target: A tensor that was made while recording, or a nest of them, which are summed.
          sources: Tensors that were used, variables, Keras variables, values from `at`, or a nest of them. A plain
            variable means what it means in TensorFlow: every read counts, and an assignment ends the path.
          output_gradients: The gradient of each target, in its shape or one that broadcasts to it: tensors, arrays or
            numbers, but not None; ones by default.
          unconnected_gradients: What to return for a source without a path: None, or zeros.
          through_updates: Let paths pass through assignments; a variable then means its value on entry to the tape.
          since: With `through_updates`, go no further back than value number `since` of each variable, or that many
            updates from the end if negative; a variable then means that value.
          none: What to do about a source without a path: "keep" returns None, "zero" returns zeros, "raise" raises an
            error that explains it as `tape.why` does, even if `unconnected_gradients` requests zeros.

        Returns:
          The gradients in the structure of `sources`; None for a source without a path. The derivative of a gradient
          that happens to be constant is zero, not None. A target of integers, booleans or strings has no gradient and
          causes a warning; the other targets in the same nest are differentiated.

        Raises:
          NotRecordedError: If the target was not made while recording.
          NotDifferentiableError: With `none="raise"`, if a target is of integer, boolean or string type.
          NoRuleError: If a path passes an op for which TensorFlow has no gradient.
          MissingGradientError: With `none="raise"`, if a source has no gradient.

        >>> w = tf.Variable([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(w ** 2)
        >>> tape.gradient(loss, {"w": w})["w"].numpy().tolist()
        [2.0, 4.0]
        """
        fill = none == "zero" or (unconnected_gradients is not _NONE and zeros_wanted(unconnected_gradients))
        if since is not None and not through_updates:
            raise ValueError("since= limits how far to go through updates; give through_updates=True with it.")
        if none not in _MISSING:
            raise ValueError(f"none= must be one of {', '.join(map(repr, _MISSING))}, got {none!r}.")
        session = self._recorded()
        plain = output_gradients is None and not fill and not through_updates and none == "keep"
        quick = quick_gradient(session, target, sources) if plain else None
        found = None if quick is None else quick.run()
        if quick is not None and found is not None:
            self._results.remember(quick.request, quick.solve, found, ())
            return quick.pack(found)
        parts = take_apart(sources, "source")
        with recorded_in_graph(session):
            options: dict[str, Any] = {"through_updates": through_updates, "since": since, "leave_out": none != "raise"}
            request = make_request(session, self._results, target, parts, output_gradients, **options)
            if request.left_out:
                warn_of_targets(request)

            def compute() -> list[Any]:
                return fill_constants(session, request, parts, solve(session, request, releases=True))

            found = self._solve(session, request, compute, "gradient")
            if quick is not None and not request.derived_from:
                quick.remember(("gradient", request.key()))
        if none == "raise" and any(grad is None for grad in found):
            self._raise_missing(session, target, parts, request, found)
        if fill:
            found = [zeros_like(part) if grad is None else grad for part, grad in zip(parts.flat, found, strict=True)]
        return parts.pack(found)

    @query
    def backward(
        self,
        loss: Any,
        wrt: Any = None,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = _NONE,
        *,
        through_updates: bool = False,
        since: int | None = None,
        none: _Missing = "keep",
    ) -> Gradients:
        """Return the gradient of a loss as a vector, keyed by variable; None and sparse gradients are handled.

        Args:
          loss: As the target of `gradient`.
          wrt: As the sources of `gradient`; every trainable variable that was read if None. Keras decides at the time
            of the call: weights of a layer with `trainable = False` are left out, unless they are given here.
          output_gradients: As for `gradient`.
          unconnected_gradients: As for `gradient`.
          through_updates: As for `gradient`.
          since: As for `gradient`.
          none: As for `gradient`.

        Returns:
          The gradients. `missing` lists the sources without a path, and `why(source)` explains why.

        >>> w = tf.Variable([3.0, 4.0])
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(w ** 2) / 2.0
        >>> float(tape.backward(loss).norm())
        5.0
        """
        session = self._recorded()
        sources = sources_of(session, wrt, self._tensor)
        options: dict[str, Any] = {"through_updates": through_updates, "since": since}
        found = self.gradient(loss, sources, output_gradients, unconnected_gradients, none=none, **options)
        if all(grad is not None for grad in found):
            return Gradients.of_query(sources, found)
        parts = take_apart(sources, "source")
        request = make_request(session, self._results, loss, parts, ones=False, leave_out=True, **options)
        return with_reasons(session, request, parts, found, partial(self._explain, session, loss, **options))

    @query
    def vjp(self, target: Any, sources: Any, cotangents: Any, **options: Any) -> Any:
        """Return the product of `cotangents` with the Jacobian of `target`: `gradient` with `output_gradients`.

        Args:
          target: As for `gradient`.
          sources: As for `gradient`.
          cotangents: One for each target, in its shape.
          **options: As for `gradient`.

        >>> x = tf.constant([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> tape.vjp(y, x, tf.constant([1.0, 10.0])).numpy().tolist()
        [2.0, 40.0]
        """
        return self.gradient(target, sources, output_gradients=cotangents, **options)

    @as_is
    def stream(
        self, loss: Any, wrt: Any = None, *, through_updates: bool = False, since: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield each source with its gradient as soon as it is complete, last layers first.

        Code that consumes each gradient before taking the next never holds all of them. Sources without a path are left
        out. Yielded gradients cannot be differentiated: for higher derivatives use `gradient`.

        Args:
          loss: As the target of `gradient`.
          wrt: As the sources of `gradient`; every trainable variable that was read if None.
          through_updates: As for `gradient`.
          since: As for `gradient`.

        >>> w = tf.Variable([3.0, 4.0])
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(w ** 2)
        >>> [float(tf.norm(grad)) for variable, grad in tape.stream(loss)]
        [10.0]
        """
        (loss, wrt), _ = self._resolve_names((loss, wrt), {})
        with self._lock:
            session = self._recorded()
            parts = take_apart(sources_of(session, wrt, self._tensor), "source")
            request = make_request(session, self._results, loss, parts, None, through_updates, since, leave_out=True)
            refuse_outside(request, True, "to stream gradients")
            token = session.token
        warn_of_targets(request)
        op_by_op(session, "gradients are yielded one by one")
        owners = [
            item for item, own in zip(tf.nest.flatten(parts.nest), parts.parts, strict=True) for _ in own
        ]  # the tensors of a composite source are yielded one by one
        with recorded_in_graph(session):
            for positions, asked in request.queries():
                found = stream(session.trace, asked, session.operations, releases=len(positions) == len(owners))
                while (item := self._next_item(session, found)) is not None:
                    position, grad = item
                    yield owners[positions[position]], grad
                    if session.token is not token:
                        raise TapeUseError(
                            "This tape was reset while its gradients were being streamed. Take all of them first: "
                            "`list(tape.stream(loss))`."
                        )

    def _next_item(self, session: Session, items: Iterator[_Item]) -> _Item | None:
        """Return the next item, computed while no other query of this tape runs; None at the end."""
        with self._lock, session.trace.explained():
            return next(items, None)
