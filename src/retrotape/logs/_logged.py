"""The method of tapes that writes to TensorBoard."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from retrotape._types import Nest
from retrotape.diagnose.tensors import value_of
from retrotape.errors import GuessedLossWarning, MissingPackageError, NotDifferentiableError, TapeUseError
from retrotape.grads import Gradients
from retrotape.ir import LEAF
from retrotape.record import EagerSession, Session, Trace, current_stack, stacklevel
from retrotape.tf.core import tf
from retrotape.tf.methods import locked
from retrotape.tf.nests import describe, has_derivative, take_apart


class Logged(ABC):
    """A tape whose gradients and activations can be logged."""

    backward: Callable[..., Gradients]
    value: Callable[..., Any]
    _results: Any

    @abstractmethod
    def _eager(self, method: str) -> EagerSession:
        """Return the session that recorded eager code, or raise."""

    @abstractmethod
    def _one(self, key: Any) -> Any:
        """Return the tensor or variable that the user means."""

    @abstractmethod
    def _targets(self, session: Session, target: Nest) -> tuple[int, ...]:
        """Return the vars of a target, or raise if it was not recorded."""

    @abstractmethod
    def _is_result(self, part: Any) -> bool:
        """Return whether a tensor is a result that this tape has returned."""

    @abstractmethod
    def _names(self) -> Mapping[str, Any]:
        """Return the tensors and variables that names refer to."""

    @locked
    def log(self, writer: tf.summary.SummaryWriter, step: int, loss: Any = None, *, graph: bool = True) -> Gradients:
        """Write this step to TensorBoard: gradients and activations by layer, and what is wrong with them.

        Scalars are the loss, the `metrics` of its gradients, and for each layer call and each gradient the norm and how
        many elements are not finite. Histograms (`.../values`) are of the finite elements: TensorBoard drops the
        whole histogram otherwise. If a gradient is missing, zero or not finite, the text `findings` says why, as
        `why` and `first_nonfinite` do. Nothing of this is recorded, also inside an open block.

        Args:
          writer: Where to write: `tf.summary.create_file_writer("logs")`.
          step: The number of the step.
          loss: As for `backward`. If None, that of `report`: the name "loss", or else what was differentiated last, or
            else the last floating-point scalar that no op used and that depends on a trainable variable; if there are
            several such scalars, a warning says which one was taken.
          graph: Whether to draw what was recorded, once for each writer: ops by layer, without values.

        Returns:
          The gradients with respect to every trainable variable that was read, as `backward` returns them.

        Raises:
          TapeUseError: If there is no such loss; or inside a tf.function, where there are no values.
          MissingPackageError: If TensorBoard is not installed.

        >>> import os, tempfile
        >>> writer = tf.summary.create_file_writer(tempfile.mkdtemp())
        >>> w = tf.Variable([3.0, 4.0], name="w")
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(w ** 2)
        >>> float(tape.log(writer, step=0, loss=loss).norm())
        10.0
        """
        if not isinstance(writer, tf.summary.SummaryWriter):
            raise TypeError(
                f"log takes a writer, got {type(writer).__name__}: "
                "`writer = tf.summary.create_file_writer('logs')`, then `tape.log(writer, step)`."
            )
        if find_spec("tensorboard") is None:
            raise MissingPackageError("`tape.log`", "tensorboard", "tensorboard")
        from retrotape.logs._findings import findings  # imported late: most programs log nothing
        from retrotape.logs._tensorboard import Board

        session = self._eager("log")
        with current_stack().unrecorded():
            target, description = self._chosen(session) if loss is None else (loss, None)
            total = self._total(target)
            grads = self.backward(target)
            with writer.as_default(step=int(step)):
                board = Board(session.trace)
                board.write_loss(total, description)
                nonfinite = board.write_gradients(grads)
                board.write_activations()
                board.write_findings(findings(self, target, grads, nonfinite))
                if graph:
                    board.write_graph(writer)
        return grads

    def _chosen(self, session: EagerSession) -> tuple[Any, str]:
        """Return the loss where the user has given none, and what it is, in words."""
        from retrotape.diagnose.losses import ALONE, LAST, choose_loss

        trace = session.trace
        found = choose_loss(trace, self._names(), partial(self._targets, session), self._results.last_targets())
        if found is None:
            raise TapeUseError(
                "There is no loss to log: this tape has no name 'loss', no scalar on it was differentiated, and it has "
                "no floating-point scalar that no op used. Give it: `tape.log(writer, step, loss)`."
            )
        where = repr(found.name) if found.target is not None else _where(trace, found.vars[0])
        if found.how in (LAST, ALONE) and found.candidates > 1:
            warnings.warn(GuessedLossWarning(where, found.candidates), stacklevel=stacklevel())
        return value_of(trace, found.vars[0]) if found.target is None else found.target, f"{where}, {found.how}"

    def _total(self, target: Any) -> float:
        """Return what is differentiated: the sum over all elements of the target."""
        parts = [self._one(part) if isinstance(part, str) else part for part in tf.nest.flatten(target)]
        flat = take_apart(parts, "target").flat
        there = [part for part in flat if has_derivative(part)]
        if not there:
            raise NotDifferentiableError(describe(flat[0]), flat[0].dtype.name)
        return sum(map(_sum, (part if self._is_result(part) else self.value(part) for part in there)))


def _where(trace: Trace, var: int) -> str:
    index = trace.program.producers[var]
    if index == LEAF:
        return "an input"
    eqn = trace.program.eqns[index]
    return f"{eqn.op} at {trace.program.frame_of(eqn)}"


def _sum(value: Any) -> float:
    wide = tf.math.real(tf.cast(value, tf.complex128)) if value.dtype.is_complex else tf.cast(value, tf.float64)
    return float(tf.reduce_sum(wide))
