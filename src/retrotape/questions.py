"""Every derivative that a tape can be asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from retrotape import _derivatives as derivatives
from retrotape._asking import Answers, Log, Request, fill_constants, pose, solve, versions_of
from retrotape._nests import single, take_apart, unwrap, zeros_like
from retrotape._tf import tf
from retrotape._versions import Version, pick

Tensor = Any
_as_is = tf.autograph.experimental.do_not_convert  # AutoGraph rewrites what a tf.function calls; not this
_NONE = tf.UnconnectedGradients.NONE


class Questions(ABC):
    """What can be asked of anything that was recorded."""

    _answers: Answers

    @abstractmethod
    def _asked(self) -> Log:
        """Return what was recorded, up to date, or raise where there is nothing to ask about."""

    # ------------------------------------------------------------------ first order

    @_as_is
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = _NONE,
        *,
        through_updates: bool = False,
        since: int | None = None,
    ) -> Any:
        """Return the gradient of `target`, summed over its elements, by each of `sources`.

        Args:
          target: A tensor that was made while recording, or a nest of them, which are summed.
          sources: Tensors that took part, variables, Keras variables, values from `at`, or a nest of them. A plain
            variable means what it means in TensorFlow: every read counts, and an assignment ends the path.
          output_gradients: What flows into each target; ones by default.
          unconnected_gradients: What stands for a source without path: None, or zeros.
          through_updates: Let paths run through assignments; a variable then means its value on entry to the tape.
          since: With `through_updates`, go no further back than value number `since` of each variable, or that many
            updates from the end if negative; a variable then means that value.

        Returns:
          The gradients in the nest of `sources`; None where no path leads to a source. A derivative of a gradient
          that happens to be constant is zero, not None.

        Raises:
          NotRecordedError: If the target was not made while recording.
          NotDifferentiableError: If the target is of integer, boolean or string type.
          NoRuleError: If the path passes an op for which TensorFlow has no gradient.

        >>> w = tf.Variable([1.0, 2.0])
        >>> with Tape() as tape:
        ...     loss = tf.reduce_sum(w ** 2)
        >>> tape.gradient(loss, {"w": w})["w"].numpy().tolist()
        [2.0, 4.0]
        """
        unconnected = tf.UnconnectedGradients(unconnected_gradients)
        if since is not None and not through_updates:
            raise ValueError("since= says how far to go through updates; give through_updates=True with it.")
        log = self._asked()
        parts = take_apart(sources, "source")
        with log.extended_in_graph():
            request = pose(log, target, parts, output_gradients, through_updates, since)
            derived = self._answers.derived
            found = self._ask(log, request, lambda: fill_constants(log, request, parts, derived, solve(log, request)))
        if unconnected is tf.UnconnectedGradients.ZERO:
            found = [zeros_like(part) if grad is None else grad for part, grad in zip(parts.flat(), found, strict=True)]
        return parts.pack(found)

    @_as_is
    def vjp(self, target: Any, sources: Any, cotangents: Any, **options: Any) -> Any:
        """Return the product of `cotangents` with the Jacobian of `target`: `gradient` with `output_gradients`.

        Args:
          target: As for `gradient`.
          sources: As for `gradient`.
          cotangents: One for each target, in its shape.
          **options: As for `gradient`.

        >>> x = tf.constant([1.0, 2.0])
        >>> with Tape() as tape:
        ...     y = x * x
        >>> tape.vjp(y, x, tf.constant([1.0, 10.0])).numpy().tolist()
        [2.0, 40.0]
        """
        return self.gradient(target, sources, output_gradients=cotangents, **options)

    @_as_is
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
        """Return the Jacobian of `target` by each of `sources`: shape of target, then shape of source.

        Args:
          target: A tensor that was made while recording.
          sources: As for `gradient`.
          unconnected_gradients: As for `gradient`.
          through_updates: As for `gradient`.
          parallel_iterations: Accepted and ignored.
          experimental_use_pfor: Whether elements may be treated side by side; the numbers are the same.
          chunk: How many elements are treated side by side at most, to bound memory.

        Returns:
          The Jacobians in the nest of `sources`.

        >>> x = tf.constant([1.0, 2.0])
        >>> with Tape() as tape:
        ...     y = x * x
        >>> tape.jacobian(y, x).numpy().tolist()
        [[2.0, 0.0], [0.0, 4.0]]
        """
        unconnected = tf.UnconnectedGradients(unconnected_gradients)
        single(target, "jacobian", "target")
        log = self._asked()
        parts = take_apart(sources, "source")
        with log.extended_in_graph():
            request = pose(log, target, parts, through_updates=through_updates, ones=False)

            found = self._ask(
                log, request, lambda: derivatives.jacobian(log, request, target, experimental_use_pfor, chunk)
            )
            if unconnected is tf.UnconnectedGradients.ZERO:
                found = [
                    tf.zeros(tf.concat([tf.shape(target), part.shape], 0), part.dtype) if grad is None else grad
                    for part, grad in zip(parts.flat(), found, strict=True)
                ]
        return parts.pack(found)

    @_as_is
    def batch_jacobian(
        self,
        target: Tensor,
        source: Tensor,
        unconnected_gradients: tf.UnconnectedGradients = _NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Tensor:
        """Return the Jacobian of each `target[i]` by `source[i]`, for targets that depend on no other row.

        Args:
          target: A tensor of shape `[batch, ...]`.
          source: A tensor of shape `[batch, ...]`.
          unconnected_gradients: Accepted; as in TensorFlow, an unconnected source gives zeros.
          parallel_iterations: Accepted and ignored.
          experimental_use_pfor: As for `jacobian`.

        Returns:
          A tensor of shape `[batch, *target.shape[1:], *source.shape[1:]]`.

        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> with Tape() as tape:
        ...     y = x * x
        >>> tape.batch_jacobian(y, x).numpy().tolist()
        [[[2.0, 0.0], [0.0, 4.0]], [[6.0, 0.0], [0.0, 8.0]]]
        """
        single(target, "batch_jacobian", "target")
        derivatives.check_batches(target, single(source, "batch_jacobian", "source"))
        log = self._asked()
        parts = take_apart(source, "source")
        with log.extended_in_graph():
            request = pose(log, target, parts, ones=False)
            (found,) = self._ask(
                log,
                request,
                lambda: derivatives.batch_jacobian(log, request, target, parts.items[0], experimental_use_pfor),
            )
            if found is None:
                return tf.zeros(tf.concat([tf.shape(target), tf.shape(source)[1:]], 0), target.dtype)
        return found

    @_as_is
    def per_example(self, losses: Tensor, sources: Any, *, chunk: int | None = None) -> Any:
        """Return the gradient of each element of a vector of losses by each of `sources`.

        Args:
          losses: A tensor of shape `[batch]`.
          sources: As for `gradient`.
          chunk: How many losses are treated side by side at most, to bound memory.

        Returns:
          Tensors of shape `[batch, *source.shape]` in the nest of `sources`.

        >>> w = tf.Variable(2.0)
        >>> with Tape() as tape:
        ...     losses = w * tf.constant([1.0, 3.0])
        >>> tape.per_example(losses, w).numpy().tolist()
        [1.0, 3.0]
        """
        derivatives.check_vector(single(losses, "per_example", "target"))
        return self.jacobian(losses, sources, chunk=chunk)

    # ------------------------------------------------------------------ higher order

    @_as_is
    def jvp(self, target: Tensor, sources: Any, tangents: Any, *, through_updates: bool = False) -> Tensor:
        """Return how `target` changes when `sources` move along `tangents`.

        Args:
          target: A tensor that was made while recording.
          sources: As for `gradient`.
          tangents: One for each source, in its shape.
          through_updates: As for `gradient`.

        Returns:
          A tensor in the shape of `target`; None where no path leads to a source.

        >>> x = tf.constant([1.0, 2.0])
        >>> with Tape() as tape:
        ...     y = x * x
        >>> tape.jvp(y, x, tf.constant([1.0, 10.0])).numpy().tolist()
        [2.0, 40.0]
        """
        single(target, "jvp", "target")
        log = self._asked()
        parts = take_apart(sources, "source")
        vectors = derivatives.vectors_for(parts, tangents, "tangent")
        with log.extended_in_graph():
            request = pose(log, target, parts, through_updates=through_updates)
            (found,) = self._ask(log, request, lambda: derivatives.jvp(log, target, parts, vectors, through_updates))
        return found

    @_as_is
    def hvp(self, target: Tensor, sources: Any, vectors: Any, *, through_updates: bool = False) -> Any:
        """Return the product of the Hessian of `target` by `sources` with `vectors`, without the Hessian.

        Args:
          target: A scalar that was made while recording.
          sources: As for `gradient`.
          vectors: One for each source, in its shape.
          through_updates: As for `gradient`.

        Returns:
          The products in the nest of `sources`; None where no path leads to a source.

        >>> x = tf.constant(2.0)
        >>> with Tape() as tape:
        ...     y = x ** 3
        >>> float(tape.hvp(y, x, tf.constant(1.0)))
        12.0
        """
        derivatives.check_scalar(single(target, "hvp", "target"), "hvp")
        log = self._asked()
        parts = take_apart(sources, "source")
        given = derivatives.vectors_for(parts, vectors, "vector")
        with log.extended_in_graph():
            request = pose(log, target, parts, through_updates=through_updates)
            found = self._ask(log, request, lambda: derivatives.hvp(log, target, parts, given, through_updates))
        return parts.pack(found)

    @_as_is
    def hessian(self, target: Tensor, sources: Any, *, whole: bool = False, through_updates: bool = False) -> Any:
        """Return the second derivatives of a scalar `target` by `sources`.

        Args:
          target: A scalar that was made while recording.
          sources: As for `gradient`.
          whole: Return one matrix over all elements of all sources, in the order of the flattened nest.
          through_updates: As for `gradient`.

        Returns:
          For one source, a tensor of its shape twice; for a nest, a nest of such blocks in the nest of the sources;
          with `whole`, one matrix. Blocks without path are zero.

        >>> x = tf.constant([1.0, 2.0])
        >>> with Tape() as tape:
        ...     y = x[0] ** 2 * x[1]
        >>> tape.hessian(y, x).numpy().tolist()
        [[4.0, 2.0], [2.0, 0.0]]
        """
        derivatives.check_scalar(single(target, "hessian", "target"), "hessian")
        log = self._asked()
        parts = take_apart(sources, "source")
        with log.extended_in_graph():
            request = pose(log, target, parts, through_updates=through_updates)

            def compute() -> list[Any]:
                blocks = derivatives.hessian(log, target, parts, through_updates)
                return [derivatives.as_matrix(blocks, parts)] if whole else [b for row in blocks for b in row]

            found = self._ask(log, request, compute)
        if whole:
            return found[0]
        width = len(parts.flat())
        return parts.pack([parts.pack(found[start : start + width]) for start in range(0, len(found), width)])

    # ------------------------------------------------------------------ values that variables had

    @_as_is
    def versions(self, variable: Any) -> tuple[Version, ...]:
        """Return every value that a variable had on this tape, oldest first.

        >>> v = tf.Variable(1.0)
        >>> with Tape() as tape:
        ...     y = v * 2.0
        ...     _ = v.assign(5.0)
        >>> [float(version.value) for version in tape.versions(v)]
        [1.0, 5.0]
        """
        return versions_of(self._asked(), unwrap(variable))

    @_as_is
    def at(self, variable: Any, k: int) -> Version:
        """Return value number `k` of a variable, from the end if negative, to differentiate by.

        Derivatives by it run through every later update.

        >>> v = tf.Variable(3.0)
        >>> with Tape() as tape:
        ...     _ = v.assign(v * v)
        ...     y = v * 2.0
        >>> float(tape.gradient(y, tape.at(v, 0))), float(tape.gradient(y, tape.at(v, 1)))
        (12.0, 2.0)
        """
        return pick(self.versions(variable), k)

    # ------------------------------------------------------------------ how answers are given

    def _ask(self, log: Log, request: Request, compute: Callable[[], list[Any]]) -> list[Any]:
        """Compute an answer and remember how, without `compute` holding on to the tape: that would be a cycle."""
        found = compute()
        self._answers.remember(request, None if log.is_heard() else compute, found)
        return found
