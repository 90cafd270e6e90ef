"""First derivatives: what can be asked of anything that was recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from threading import RLock
from typing import Any, TypeVar

from retrotape import _derivatives as derivatives
from retrotape._asking import Answers, Log, Request, fill_constants, pose, solve
from retrotape._nests import single, take_apart, zeros_like
from retrotape._tf import tf
from retrotape.grads import Gradients

Tensor = Any
_Method = TypeVar("_Method", bound=Callable[..., Any])


def question(method: _Method) -> _Method:
    """Mark a method as a question: one at a time on one tape, and not rewritten by AutoGraph inside a tf.function."""

    @wraps(method)
    def alone(self: Questions, *args: Any, **options: Any) -> Any:
        with self._lock:  # answering may write down what an earlier answer came from
            return method(self, *args, **options)

    return tf.autograph.experimental.do_not_convert(alone)


_NONE = tf.UnconnectedGradients.NONE


class Questions(ABC):
    """What can be asked of anything that was recorded."""

    _answers: Answers
    _lock: RLock

    @abstractmethod
    def _asked(self) -> Log:
        """Return what was recorded, up to date, or raise where there is nothing to ask about."""

    # ------------------------------------------------------------------ first order

    @question
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
        >>> with rt.Tape() as tape:
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
            request = pose(log, self._answers, target, parts, output_gradients, through_updates, since)
            found = self._ask(log, request, lambda: fill_constants(log, request, parts, solve(log, request)))
        if unconnected is tf.UnconnectedGradients.ZERO:
            found = [zeros_like(part) if grad is None else grad for part, grad in zip(parts.flat(), found, strict=True)]
        return parts.pack(found)

    @question
    def backward(self, loss: Any, wrt: Any = None, **options: Any) -> Gradients:
        """Return the gradient of a loss as a vector: keyed by variable, safe with None, safe with sparse ones.

        Args:
          loss: As the target of `gradient`.
          wrt: As the sources of `gradient`; every trainable variable that was read if None.
          **options: As for `gradient`.

        >>> w = tf.Variable([3.0, 4.0])
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(w ** 2) / 2.0
        >>> float(tape.backward(loss).norm())
        5.0
        """
        log = self._asked()
        sources = tf.nest.flatten(wrt) if wrt is not None else [v for v in log.variables() if v.trainable]
        return Gradients(zip(sources, self.gradient(loss, sources, **options), strict=True))

    @question
    def backward_each(self, losses: Sequence[Any], wrt: Any = None, **options: Any) -> list[Gradients]:
        """Return the gradient of each of several losses, as `backward` does.

        >>> w = tf.Variable(3.0)
        >>> with rt.Tape() as tape:
        ...     losses = [w ** 2, 5.0 * w]
        >>> [float(grads[w]) for grads in tape.backward_each(losses)]
        [6.0, 5.0]
        """
        return [self.backward(loss, wrt, **options) for loss in losses]

    @question
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

    @question
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
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> tape.jacobian(y, x).numpy().tolist()
        [[2.0, 0.0], [0.0, 4.0]]
        """
        unconnected = tf.UnconnectedGradients(unconnected_gradients)
        single(target, "jacobian", "target")
        log = self._asked()
        parts = take_apart(sources, "source")
        with log.extended_in_graph():
            request = pose(log, self._answers, target, parts, through_updates=through_updates, ones=False)

            found = self._ask(
                log, request, lambda: derivatives.jacobian(log, request, target, experimental_use_pfor, chunk)
            )
            if unconnected is tf.UnconnectedGradients.ZERO:
                found = [
                    tf.zeros(tf.concat([tf.shape(target), part.shape], 0), part.dtype) if grad is None else grad
                    for part, grad in zip(parts.flat(), found, strict=True)
                ]
        return parts.pack(found)

    @question
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
        >>> with rt.Tape() as tape:
        ...     y = x * x
        >>> tape.batch_jacobian(y, x).numpy().tolist()
        [[[2.0, 0.0], [0.0, 4.0]], [[6.0, 0.0], [0.0, 8.0]]]
        """
        single(target, "batch_jacobian", "target")
        derivatives.check_batches(target, single(source, "batch_jacobian", "source"))
        log = self._asked()
        parts = take_apart(source, "source")
        with log.extended_in_graph():
            request = pose(log, self._answers, target, parts, ones=False)
            (found,) = self._ask(
                log,
                request,
                lambda: derivatives.batch_jacobian(log, request, target, parts.items[0], experimental_use_pfor),
            )
            if found is None:
                return tf.zeros(tf.concat([tf.shape(target), tf.shape(source)[1:]], 0), target.dtype)
        return found

    @question
    def per_example(self, losses: Tensor, sources: Any, *, chunk: int | None = None) -> Any:
        """Return the gradient of each element of a vector of losses by each of `sources`.

        Args:
          losses: A tensor of shape `[batch]`.
          sources: As for `gradient`.
          chunk: How many losses are treated side by side at most, to bound memory.

        Returns:
          Tensors of shape `[batch, *source.shape]` in the nest of `sources`.

        >>> w = tf.Variable(2.0)
        >>> with rt.Tape() as tape:
        ...     losses = w * tf.constant([1.0, 3.0])
        >>> tape.per_example(losses, w).numpy().tolist()
        [1.0, 3.0]
        """
        derivatives.check_vector(single(losses, "per_example", "target"))
        return self.jacobian(losses, sources, chunk=chunk)

    # ------------------------------------------------------------------ how answers are given

    def _ask(self, log: Log, request: Request, compute: Callable[[], list[Any]]) -> list[Any]:
        """Compute an answer and remember how, without `compute` holding on to the tape: that would be a cycle."""
        found = compute()
        # In a pause an answer is a constant, like everything else that runs then.
        if log.is_heard() or not log.is_open:
            self._answers.remember(request, None if log.is_heard() else compute, found)
        return found
