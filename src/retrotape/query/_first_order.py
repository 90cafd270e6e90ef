"""First derivatives: what can be asked of anything that was recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from threading import RLock
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, get_args, overload

from retrotape.diagnose.missing import warn_of_targets, with_reasons
from retrotape.diagnose.why import Explanation, explain
from retrotape.errors import MissingGradientError, TapeUseError
from retrotape.execute import stream
from retrotape.grads import Gradients
from retrotape.query._request import Answers, Log, Request, fill_constants, pose, refuse_outside, solve
from retrotape.query._several import Together, losses_and_seeds, sources_of
from retrotape.record import EagerLog
from retrotape.tf.core import as_is, tf
from retrotape.tf.nests import (
    Parts,
    describe,
    has_derivative,
    is_variable,
    take_apart,
    zeros_like,
    zeros_wanted,
)

Tensor = Any
_Method = TypeVar("_Method", bound=Callable[..., Any])


def question(method: _Method) -> _Method:
    """Mark a method as a question: `locked`, and names of a loaded tape can stand for tensors and variables."""

    @wraps(method)
    def with_names(self: Questions, *args: Any, **options: Any) -> Any:
        args, options = self._without_names(args, options)
        return method(self, *args, **options)

    return locked(with_names)  # type: ignore[return-value]


def locked(method: _Method) -> _Method:
    """Let a method run one at a time on one tape, and not be rewritten by AutoGraph inside a tf.function."""

    @wraps(method)
    def alone(self: Questions, *args: Any, **options: Any) -> Any:
        with self._lock:  # answering may write down what an earlier answer came from
            return method(self, *args, **options)

    return as_is(alone)  # type: ignore[return-value]


_NONE = tf.UnconnectedGradients.NONE
_Missing: TypeAlias = Literal["keep", "zero", "raise"]


class Questions(ABC):
    """What can be asked of anything that was recorded."""

    _answers: Answers
    _lock: RLock

    @abstractmethod
    def _asked(self) -> Log:
        """Return what was recorded, up to date, or raise where there is nothing to ask about."""

    def _without_names(self, args: Any, options: Any) -> tuple[Any, Any]:
        """Put tensors and variables in the place of names, where a tape has names."""
        return args, options

    def __reduce__(self) -> NoReturn:
        raise TypeError("A tape is not pickled or copied. Save it: `tape.save(path)`, and elsewhere `rt.load(path)`.")

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
        none: _Missing = "keep",
    ) -> Any:
        """Return the gradient of `target`, summed over its elements, by each of `sources`.

        Args:
          target: A tensor that was made while recording, or a nest of them, which are summed.
          sources: Tensors that took part, variables, Keras variables, values from `at`, or a nest of them. A plain
            variable means what it means in TensorFlow: every read counts, and an assignment ends the path.
          output_gradients: What flows into each target, in its shape or one that broadcasts to it: tensors, arrays or
            numbers, and no None among them; ones by default.
          unconnected_gradients: What stands for a source without path: None, or zeros.
          through_updates: Let paths run through assignments; a variable then means its value on entry to the tape.
          since: With `through_updates`, go no further back than value number `since` of each variable, or that many
            updates from the end if negative; a variable then means that value.
          none: What to do about a source without path: "keep" gives None, "zero" zeros, "raise" raises an error that
            says what `tape.why` says, also where `unconnected_gradients` asks for zeros.

        Returns:
          The gradients in the nest of `sources`; None where no path leads to a source. A derivative of a gradient
          that happens to be constant is zero, not None. A target of integers, booleans or text has no gradient, which
          a warning says; what else is in the same nest is answered.

        Raises:
          NotRecordedError: If the target was not made while recording.
          NotDifferentiableError: With `none="raise"`, if a target is of integer, boolean or string type.
          NoRuleError: If the path passes an op for which TensorFlow has no gradient.
          MissingGradientError: With `none="raise"`, if a source has no gradient.

        >>> w = tf.Variable([1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(w ** 2)
        >>> tape.gradient(loss, {"w": w})["w"].numpy().tolist()
        [2.0, 4.0]
        """
        fill = zeros_wanted(unconnected_gradients) or none == "zero"
        if since is not None and not through_updates:
            raise ValueError("since= says how far to go through updates; give through_updates=True with it.")
        if none not in get_args(_Missing):
            raise ValueError(f"none= must be one of {', '.join(map(repr, get_args(_Missing)))}, got {none!r}.")
        log = self._asked()
        parts = take_apart(sources, "source")
        with log.extended_in_graph():
            options: dict[str, Any] = {"through_updates": through_updates, "since": since, "leave_out": none != "raise"}
            request = pose(log, self._answers, target, parts, output_gradients, **options)
            warn_of_targets(request)
            found = self._ask(log, request, lambda: fill_constants(log, request, parts, solve(log, request)))
        if none == "raise" and any(grad is None for grad in found):
            self._raise_missing(log, target, parts, request, found)
        if fill:
            found = [zeros_like(part) if grad is None else grad for part, grad in zip(parts.flat(), found, strict=True)]
        return parts.pack(found)

    @question
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
        """Return the gradient of a loss as a vector: keyed by variable, safe with None, safe with sparse ones.

        Args:
          loss: As the target of `gradient`.
          wrt: As the sources of `gradient`; every trainable variable that was read if None. Trainable is what Keras
            says now: weights of a layer with `trainable = False` are left out, unless they are named here.
          output_gradients: As for `gradient`.
          unconnected_gradients: As for `gradient`.
          through_updates: As for `gradient`.
          since: As for `gradient`.
          none: As for `gradient`.

        Returns:
          The gradients. Its `missing` lists the sources without path, and `why(source)` says why there is none.

        >>> w = tf.Variable([3.0, 4.0])
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(w ** 2) / 2.0
        >>> float(tape.backward(loss).norm())
        5.0
        """
        log = self._asked()
        sources = sources_of(log, wrt)
        options: dict[str, Any] = {"through_updates": through_updates, "since": since}
        found = self.gradient(loss, sources, output_gradients, unconnected_gradients, none=none, **options)
        if all(grad is not None for grad in found):
            return Gradients(zip(sources, found, strict=True))
        parts = take_apart(sources, "source")
        request = pose(log, self._answers, loss, parts, ones=False, leave_out=True, **options)
        return with_reasons(log, request, parts, found, partial(self._explained, log, loss, **options))

    @overload
    def backward_each(self, losses: Mapping[Any, Any], wrt: Any = None, **options: Any) -> dict[Any, Gradients]: ...

    @overload
    def backward_each(self, losses: Sequence[Any], wrt: Any = None, **options: Any) -> list[Gradients]: ...

    @question  # type: ignore[misc]  # the two above leave the options out, for brevity
    def backward_each(
        self,
        losses: Sequence[Any] | Mapping[Any, Any] | Tensor,
        wrt: Any = None,
        *,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = _NONE,
        through_updates: bool = False,
        since: int | None = None,
    ) -> Any:
        """Return the gradient of each of several losses: the same as `backward` of each, for less.

        What the losses share is looked up once, and values that were not kept are computed again once for all.

        Args:
          losses: A list or a dictionary of losses, each as the target of `gradient`, or a vector of them.
          wrt: As for `backward`.
          output_gradients: What flows into each of the losses in a list, the same for all.
          unconnected_gradients: As for `gradient`.
          through_updates: As for `gradient`.
          since: As for `gradient`.

        Returns:
          A list of `Gradients`, one for each loss; of a dictionary of losses, a dictionary with the same keys.

        Raises:
          ShapeMismatchError: If `losses` is a tensor, but not a vector of known size.

        >>> w = tf.Variable(3.0)
        >>> with rt.Tape() as tape:
        ...     losses = [w ** 2, 5.0 * w]
        >>> [float(grads[w]) for grads in tape.backward_each(losses)]
        [6.0, 5.0]
        """
        options: dict[str, Any] = {"through_updates": through_updates, "since": since}
        if isinstance(losses, Mapping):
            kinds: Any = {"output_gradients": output_gradients, "unconnected_gradients": unconnected_gradients}
            rows = self.backward_each(list(losses.values()), wrt, **kinds, **options)
            return dict(zip(losses, rows, strict=True))
        log = self._asked()
        sources = sources_of(log, wrt)
        given = losses_and_seeds(losses, output_gradients)
        zeros = zeros_wanted(unconnected_gradients)
        if log.graph is not None or len(given) < 2:  # a graph has all values, and must be read anew for each question
            options["unconnected_gradients"] = unconnected_gradients
            return [self.backward(loss, sources, output_gradients=seed, **options) for loss, seed in given]
        together = Together(log, self._answers, given, take_apart(sources, "source"), **options)
        for request in together.requests:
            warn_of_targets(request)
        asked = [partial(together.row, number) for number in range(len(given))]
        found = [self._ask(log, request, row) for request, row in zip(together.requests, asked, strict=True)]
        return together.gradients(found, zeros, [partial(self._explained, log, loss, **options) for loss, _ in given])

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

    @as_is
    def stream(
        self, loss: Any, wrt: Any = None, *, through_updates: bool = False, since: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield each source with its gradient as soon as that is whole, last layers first.

        Whoever uses a gradient up before taking the next one never holds all of them. Sources without path are left
        out. What is yielded is not remembered: for derivatives of gradients use `gradient`.

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
        (loss, wrt), _ = self._without_names((loss, wrt), {})
        with self._lock:
            log = self._asked()
            parts = take_apart(sources_of(log, wrt), "source")
            request = pose(log, self._answers, loss, parts, None, through_updates, since, leave_out=True)
            refuse_outside(request, True, "to stream gradients")
            token = log.token
        warn_of_targets(request)
        owners = [
            item for item, own in zip(tf.nest.flatten(parts.nest), parts.parts, strict=True) for _ in own
        ]  # of a source that consists of several tensors, each is yielded by itself
        with log.extended_in_graph():
            for positions, asked in request.questions():
                for position, grad in stream(log.recording, asked, log.operations):
                    yield owners[positions[position]], grad
                    if log.token is not token:
                        raise TapeUseError(
                            "This tape was reset while its gradients were handed out. Take all of them first: "
                            "`list(tape.stream(loss))`."
                        )

    # ------------------------------------------------------------------ answers that are missing

    def _write_down(self, part: Any, log: EagerLog) -> None:
        """Let an answer of this tape be known as what it was computed from."""
        var = None if is_variable(part) else self._answers.var(part, log)
        if var is not None:
            log.recording.alias(part._id, var)

    def _explained(self, log: Log, target: Any, source: Any, **options: Any) -> Explanation | None:
        """Return why a source has no gradient; None in a graph, which knows no values."""
        if not isinstance(log, EagerLog):
            return None
        given = take_apart(target, "target").flat()
        targets = [part for part in given if has_derivative(part)] or given
        for part in targets:
            self._write_down(part, log)
        return explain(log, targets, source, **options)

    def _raise_missing(self, log: Log, target: Any, sources: Parts, request: Request, found: Sequence[Any]) -> None:
        """Raise an error that tells why the first of the sources without gradient has none."""
        missing = [part for part, grad in zip(sources.flat(), found, strict=True) if grad is None]
        options = {"through_updates": any(request.through), "since": request.since}
        explanation = self._explained(log, target, missing[0], **options)
        if explanation is None:
            reasons = with_reasons(log, request, sources, tf.nest.flatten(sources.pack(found)))
            text = f"gradient by {describe(missing[0])}: {reasons.why(reasons.missing[0])}"
        else:
            text = str(explanation)
        raise MissingGradientError(describe(missing[0]), text, len(missing) - 1)

    # ------------------------------------------------------------------ how answers are given

    def _ask(self, log: Log, request: Request, compute: Callable[[], list[Any]]) -> list[Any]:
        """Compute an answer and remember how, without `compute` holding on to the tape: that would be a cycle."""
        found = compute()
        # In a pause an answer is a constant, like everything else that runs then.
        if log.is_heard() or not log.is_open:
            self._answers.remember(request, None if log.is_heard() else compute, found)
        return found
