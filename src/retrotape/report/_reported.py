"""The methods of a tape that report on it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from retrotape._types import Nest
from retrotape.diagnose.tensors import value_of
from retrotape.record import EagerSession, Session, current_stack
from retrotape.report._report import Report
from retrotape.tf.methods import locked

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Reported(ABC):
    """A tape that can be reported on."""

    _lock: RLock
    _results: Any

    @abstractmethod
    def _eager(self, method: str) -> EagerSession:
        """Return the session that recorded in eager code, or raise."""

    @abstractmethod
    def _names(self) -> Mapping[str, Any]:
        """Return the tensors and variables that have names."""

    @abstractmethod
    def _targets(self, session: Session, target: Nest) -> tuple[int, ...]:
        """Return the vars of a target, or raise if it was not recorded."""

    @abstractmethod
    def _one(self, key: Any) -> Any:
        """Return the tensor or variable that the user means."""

    @locked
    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        loss: Any = None,
        losses: Mapping[str, Any] | Sequence[Any] | None = None,
        title: str | None = None,
    ) -> Report:
        """Return what was recorded and what is wrong with it, and write it as a page that explains it.

        The page is one HTML file that needs nothing else: findings, gradient flow by layer, the graph of layers, every
        op by layer and line, memory by line, variables over time.

        Args:
          path: The file to write; needs Jinja2, `pip install retrotape[report]`. None writes nothing.
          loss: What to take gradients of. By default a tensor called "loss", or else what was differentiated last, or
            else the last floating-point scalar that no op used and that depends on a trainable variable. The page says
            which it was.
          losses: Several of them, by name: the flow is that of their sum, and conflicts between them are found.
          title: The title of the page.

        Raises:
          MissingPackageError: If Jinja2 is not installed.
          NotRecordedError: If the loss was not made while recording.

        >>> w = tf.Variable([1.0, 2.0], name="w")
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(w ** 2) + tf.reduce_sum(tf.stop_gradient(w))
        >>> report = tape.report()
        >>> report.losses[0].value, report.weights[0].gradient.norm, report.findings
        (8.0, 4.47213595499958, ())
        """
        # Imported late: most programs report nothing.
        from retrotape.diagnose.losses import choose_loss
        from retrotape.report._gather import make_report
        from retrotape.report._losses import given_losses
        from retrotape.report._scene import Scene

        if path is not None:
            from retrotape.report._page import template

            template()  # before anything is computed: the package may be missing
        session = self._eager("report")
        with current_stack().unrecorded(), session.trace.explained(), self._results.quiet():
            find = partial(self._targets, session)
            chosen = given_losses(loss, losses, self._resolved, find)
            if not chosen:
                one = choose_loss(session.trace, self._names(), find, self._results.last_targets())
                chosen = [] if one is None else [one]
            targets = [value_of(session.trace, one.vars[0]) if one.target is None else one.target for one in chosen]
            found = make_report(
                Scene(self, session, chosen, targets, self._results.sources_for), title or _title(session)
            )
        if path is not None:
            found.save(path)
        return found

    def plot(self, path: str | os.PathLike[str] | None = None, *, loss: Any = None) -> Figure:
        """Return the gradient flow as a figure: what each layer returns, and the gradients that come back.

        Args:
          path: A file to write it to, such as "flow.png".
          loss: As for `report`.

        Raises:
          MissingPackageError: If Matplotlib is not installed: `pip install retrotape[plot]`.

        >>> w = tf.Variable([[1.0, 2.0]], name="dense/kernel")
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(tf.constant([[1.0], [3.0]]) @ w)
        >>> [axis.get_title(loc="left") for axis in tape.plot().axes]
        ['What each layer returns, and its gradient', 'Gradients with respect to weights']
        """
        from retrotape.report._plot import plot_report

        return plot_report(self.report(loss=loss), path)

    def _resolved(self, loss: Any) -> Any:
        return self._one(loss) if isinstance(loss, str) else loss


def _title(session: EagerSession) -> str:
    program = session.trace.program
    files = Counter(program.frame_of(eqn).file for eqn in program.eqns)
    return f"Tape of {os.path.basename(files.most_common(1)[0][0])}" if files else "An empty tape"
