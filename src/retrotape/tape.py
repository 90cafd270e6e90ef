"""The tape: what the user holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any

from retrotape._tf import tf
from retrotape._nests import Parts, is_variable, seeds_for, take_apart
from retrotape.errors import EmptyTapeError, NotDifferentiableError, NotRecordedError, ShapeMismatchError, TapeUseError
from retrotape.execute import Question, answer, rows
from retrotape.ir import Program
from retrotape.memory import Memory, measure
from retrotape.record import EagerLog, GraphLog

Tensor = Any
_KEEP = ("needed", "all", "leaves")


class Tape:
    """Record what runs; differentiate any of it by any of it, afterwards.

    Takes the place of `tf.GradientTape` and accepts its arguments. Nothing has to be watched, and any number
    of questions can be asked, in any order, inside the block or after it.

    Args:
      persistent: Accepted and ignored: every tape can be asked again.
      watch_accessed_variables: Only says what `watched_variables` lists; reads are recorded either way.
      keep: Which values stay in memory: "needed" those that gradient rules look at, as on the stock tape;
        "all"; or "leaves", those that cannot be computed again. The rest is computed again when asked for.

    >>> x = tf.constant(3.0)
    >>> with Tape() as tape:
    ...     y = x * x
    >>> float(tape.gradient(y, x))
    6.0
    """

    def __init__(
        self, persistent: bool = False, watch_accessed_variables: bool = True, *, keep: str = "needed"
    ) -> None:
        if keep not in _KEEP:
            raise ValueError(f"keep must be one of {', '.join(map(repr, _KEEP))}, got {keep!r}.")
        self._keep = keep
        self._watch_accessed = watch_accessed_variables
        self._watched: dict[int, Any] = {}
        self._log: EagerLog | GraphLog | None = None
        self._answers: dict[int, tuple[Question, int]] = {}  # gradients that were handed out, by identity
        self._was_reset = False

    # ------------------------------------------------------------------ recording

    def __enter__(self) -> Tape:
        """Begin to record, or go on."""
        log = self._log
        if log is not None and log.is_open:
            raise TapeUseError(
                "This tape is recording already. Leave the block before entering it again, or use a second tape: "
                "`with rt.Tape() as inner:`."
            )
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if log is None or log.graph is not graph:
            if log is not None and log.graph is None:
                raise TapeUseError(
                    "This tape was recorded in eager code and is now entered inside a tf.function. "
                    "Use a tape of its own inside the function: `with rt.Tape() as tape:`."
                )
            log = EagerLog(self._keep, self._expand) if graph is None else GraphLog(graph)
        log.start()
        self._log = log
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop recording."""
        if self._log is not None and self._log.is_open:
            self._log.stop()

    def watch(self, tensor: Any) -> None:
        """Accept what `tf.GradientTape.watch` accepts, and Keras variables; there is no need to call it.

        Args:
          tensor: A tensor or variable, or a nest of them.
        """
        for part in take_apart(tensor, "watched value").flat():
            if is_variable(part):
                self._watched[id(part)] = part
            elif self._log is not None:
                self._log.take_part(part)

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Leave out what runs inside this block.

        >>> x = tf.constant(3.0)
        >>> with Tape() as tape:
        ...     with tape.stop_recording():
        ...         scale = x * 2.0
        ...     y = x * scale
        >>> float(tape.gradient(y, x))
        6.0
        """
        if self._log is None or not self._log.is_open:
            raise TapeUseError("stop_recording() needs a tape that is recording. Use it inside `with tape:`.")
        with self._log.paused():
            yield

    def reset(self) -> None:
        """Forget everything that was recorded and free it, inside the block or outside."""
        if self._log is not None:
            self._log.clear()
        self._answers.clear()
        self._watched.clear()
        self._was_reset = True

    def watched_variables(self) -> tuple[Any, ...]:
        """Return the variables that were watched, or that are trainable and were read, in that order."""
        found = dict(self._watched)
        if self._watch_accessed and self._log is not None:
            self._log.refresh()
            for variable in self._log.variables():
                if variable.trainable:
                    found.setdefault(id(variable), variable)
        return tuple(found.values())

    @property
    def program(self) -> Program:
        """Everything recorded so far, as data: frozen, checked, printable."""
        log = self._asked()
        return log.recording.program()

    def memory(self) -> Memory:
        """Return what the tape holds, by line of the user's code; printing it gives a table."""
        return measure(self._asked().recording)

    # ------------------------------------------------------------------ questions

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradient of `target`, summed over its elements, by each of `sources`.

        Args:
          target: A tensor that was made while recording, or a nest of them, which are summed.
          sources: Tensors that took part, variables, Keras variables, or a nest of them. An assignment ends
            the path, and every read of a variable counts, as in TensorFlow.
          output_gradients: What flows into each target; ones by default.
          unconnected_gradients: What stands for a source without path: None, or zeros.

        Returns:
          The gradients in the nest of `sources`; None where no path leads to a source.

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
        log = self._asked()
        unconnected = tf.UnconnectedGradients(unconnected_gradients)
        parts = take_apart(sources, "source")
        question = self._question(log, target, parts, output_gradients)
        if log.graph is None:
            found = answer(log.recording, question)
            if not log.is_heard():
                self._remember(question, found)
        else:
            with log.extended():
                found = answer(log.recording, question, log.operations)
        if unconnected is tf.UnconnectedGradients.ZERO:
            found = [_zeros(part) if grad is None else grad for part, grad in zip(parts.flat(), found, strict=True)]
        return parts.pack(found)

    def jacobian(
        self,
        target: Tensor,
        sources: Any,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """Return the Jacobian of `target` by each of `sources`: shape of target, then shape of source.

        Args:
          target: A tensor that was made while recording.
          sources: As for `gradient`.
          unconnected_gradients: As for `gradient`.
          parallel_iterations: Accepted and ignored.
          experimental_use_pfor: Whether elements may be treated side by side; the numbers are the same.

        Returns:
          The Jacobians in the nest of `sources`.

        >>> x = tf.constant([1.0, 2.0])
        >>> with Tape() as tape:
        ...     y = x * x
        >>> tape.jacobian(y, x).numpy().tolist()
        [[2.0, 0.0], [0.0, 4.0]]
        """
        log = self._asked()
        unconnected = tf.UnconnectedGradients(unconnected_gradients)
        parts = take_apart(sources, "source")
        _check_single(target, "jacobian", "target")
        question = self._question(log, target, parts, None, ones=False)
        with log.extended() if log.graph is not None else nullcontext():
            shape = tf.shape(target)
            size = tf.reduce_prod(shape)
            eye = tf.reshape(tf.eye(size, dtype=target.dtype), tf.concat([[size], shape], 0))
            stacked = rows(log.recording, question, eye, log.operations, experimental_use_pfor)
            found: list[Any] = []
            for part, grad in zip(parts.flat(), stacked, strict=True):
                if grad is None and unconnected is tf.UnconnectedGradients.ZERO:
                    grad = tf.zeros(tf.concat([[size], tf.shape(part)], 0), part.dtype)
                if grad is not None:
                    grad = tf.reshape(grad, tf.concat([shape, tf.shape(grad)[1:]], 0))
                found.append(grad)
        return parts.pack(found)

    def batch_jacobian(
        self,
        target: Tensor,
        source: Tensor,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
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
        log = self._asked()
        parts = take_apart(source, "source")
        _check_single(target, "batch_jacobian", "target")
        _check_single(source, "batch_jacobian", "source")
        question = self._question(log, target, parts, None, ones=False)
        _check_batches(target, parts.items[0])
        with log.extended() if log.graph is not None else nullcontext():
            shape, source_shape = tf.shape(target), tf.shape(parts.items[0])
            width = tf.reduce_prod(shape[1:])
            columns = tf.reshape(tf.eye(width, dtype=target.dtype), tf.concat([[width, 1], shape[1:]], 0))
            seeds = tf.broadcast_to(columns, tf.concat([[width], shape], 0))
            (stacked,) = rows(log.recording, question, seeds, log.operations, experimental_use_pfor)
            full = tf.concat([shape, source_shape[1:]], 0)
            if stacked is None:
                return tf.zeros(full, target.dtype)
            by_row = tf.reshape(stacked, tf.stack([width, shape[0], -1]))
            return tf.reshape(tf.transpose(by_row, [1, 0, 2]), full)

    # ------------------------------------------------------------------ from what users say to vars

    def _asked(self) -> EagerLog | GraphLog:
        log = self._log
        if log is None:
            raise EmptyTapeError("its block was never entered")
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if log.graph is not None and log.graph is not graph:
            raise TapeUseError(
                "This tape was recorded inside a tf.function and is asked outside of it. "
                "Ask inside the function and return the answer, or record in eager code."
            )
        log.refresh()
        if self._was_reset and not log.recording.builder.types and not log.is_open:
            raise EmptyTapeError("it was reset")
        return log

    def _question(
        self, log: EagerLog | GraphLog, target: Any, sources: Parts, output_gradients: Any, ones: bool = True
    ) -> Question:
        targets = take_apart(target, "target").flat()
        for part in targets:  # a target that is also a source took part, if only by being asked about
            if any(part is source for source in sources.flat()) and not is_variable(part):
                log.take_part(part)
        found = [self._target(log, part) for part in targets]
        seeds: list[Tensor | None] = []
        if ones:
            with log.extended() if log.graph is not None else nullcontext():
                seeds = seeds_for(targets, output_gradients, tf.ones_like)
        wanted = tuple(self._source(log, part) for part in sources.flat())
        return Question(tuple(found), tuple(seeds), wanted, False)

    def _target(self, log: EagerLog | GraphLog, part: Any) -> int:
        if not (part.dtype.is_floating or part.dtype.is_complex):
            raise NotDifferentiableError(_name(part), part.dtype.name)
        if is_variable(part):
            cell = log.cell(part)
            var = None if cell is None else cell.current
            reason = ("it was not read while recording", "Read it inside the `with` block.")
        else:
            var = log.find(part)
            reason = ("", "") if var is not None else log.why_absent(part)
            if reason is None:  # made in the block, but by no op: it is what it is, and no path leads to it
                var = log.take_part(part)
        if var is None:
            raise NotRecordedError(_name(part), *reason)
        return var

    def _source(self, log: EagerLog | GraphLog, part: Any) -> tuple[int, ...]:
        if is_variable(part):
            cell = log.cell(part)
            return () if cell is None else tuple(cell.versions)
        var = log.find(part)
        return () if var is None else (var,)

    # ------------------------------------------------------------------ answers that may be asked about again

    def _remember(self, question: Question, found: list[Any]) -> None:
        """Note which tensors were handed out; how they came about is written down only if somebody asks."""
        for position, grad in enumerate(found):
            if grad is not None:
                tensor = grad.values if isinstance(grad, tf.IndexedSlices) else grad
                self._answers[tensor._id] = (question, position)

    def _expand(self, identity: int) -> bool:
        """Answer an earlier question again, this time writing it down, so that its answer has a derivative."""
        if identity not in self._answers or not isinstance(self._log, EagerLog):
            return False
        question = self._answers[identity][0]
        recording = self._log.recording
        with self._log.extended():
            found = answer(recording, question)
        for known, (earlier, position) in list(self._answers.items()):
            if earlier is question:
                grad = found[position]
                var = recording.operand(grad.values if isinstance(grad, tf.IndexedSlices) else grad)
                recording.alias(known, var)
                del self._answers[known]
        return True


GradientTape = Tape


def _zeros(part: Any) -> Tensor:
    return tf.zeros(part.shape, part.dtype) if is_variable(part) else tf.zeros_like(part)


def _name(part: Any) -> str:
    kind = f"{part.dtype.name}[{','.join('?' if d is None else str(d) for d in part.shape)}]"
    return f"{part.name!r} ({kind})" if is_variable(part) else f"tensor {kind}"


def _check_single(value: Any, method: str, role: str) -> None:
    count = len(take_apart(value, role).flat())
    if count != 1 or isinstance(value, (list, tuple, dict)):
        raise ShapeMismatchError(
            f"{method} takes one {role}, got {count} in a {type(value).__name__}; ask once for each of them."
        )


def _check_batches(target: Tensor, source: Any) -> None:
    ranks_fit = all(tensor.shape.rank is None or tensor.shape.rank >= 1 for tensor in (target, source))
    if not ranks_fit or not target.shape[:1].is_compatible_with(source.shape[:1]):
        raise ShapeMismatchError(
            f"batch_jacobian needs a target and a source with the same first dimension, got shapes "
            f"{tuple(target.shape)} and {tuple(source.shape)}. For other shapes use `tape.jacobian`."
        )
