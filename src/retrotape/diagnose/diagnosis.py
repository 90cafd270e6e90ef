"""The methods of a tape that inspect what was recorded, and explain it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any

from retrotape._types import Nest
from retrotape.diagnose.summary import Summary, summarize
from retrotape.diagnose.tensors import Tensors, Wanted, find, value_of
from retrotape.diagnose.why import Explanation, Verdict, explain
from retrotape.errors import NotRecordedError, TapeUseError
from retrotape.execute import Values
from retrotape.record import NO_QUERY, EagerSession, Session
from retrotape.tf.core import identity_of, tf
from retrotape.tf.methods import locked, locked_with_names
from retrotape.tf.nests import VARIABLES, describe, has_derivative, single, take_apart

if TYPE_CHECKING:
    from retrotape.diagnose.nonfinite import Nonfinite

IN_EAGER_CODE = (
    "Run the step in eager code: `model.compile(run_eagerly=True)`, or `tf.config.run_functions_eagerly(True)`."
)


class Diagnosis(ABC):
    """Inspection of what was recorded: why a gradient is None, where a NaN comes from, what ran."""

    _lock: RLock
    _session: Any
    gradient: Callable[..., Any]

    @abstractmethod
    def _recorded(self) -> Session:
        """Return the session, up to date, or raise if there is nothing to query."""

    @abstractmethod
    def _eager(self, method: str) -> EagerSession:
        """Return the session that recorded in eager code, or raise."""

    @abstractmethod
    def _names(self) -> Mapping[str, Any]:
        """Return the tensors and variables that have names."""

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
    def _record_result(self, part: Any, session: EagerSession) -> bool:
        """Record how a result of this tape was computed; return whether it is one."""

    @locked_with_names
    def first_nonfinite(self, target: Any = None) -> Nonfinite | None:
        """Return the op that produced the first NaN or infinity, not one that passed it on; None if all is finite.

        Calls of a `tf.function` are inspected op by op, unless there are random ops or Python code inside: these
        cannot be rerun, and the call is reported as a whole. Values that are not kept are recomputed, one at a time.

        Args:
          target: Search only for what makes this not finite, or if it is finite, its gradient. Without a target, the
            first op that produced a non-finite value is reported, whether it matters or not, or an infinite input if a
            result contains it. If there is none, the gradients are checked of every floating-point scalar that has a
            name or that nothing uses further. On a tape without such scalars, only the forward pass is checked.

        Returns:
          A `Nonfinite`: the op, its line, the ranges of its inputs, why, and what to type instead.

        >>> x = tf.constant([0.0, 1.0])
        >>> with rt.Tape() as tape:
        ...     y = tf.reduce_sum(tf.sqrt(x))
        >>> found = tape.first_nonfinite()
        >>> found.op, found.cause.name, found.backward
        ('Sqrt', 'SQRT_AT_ZERO', True)
        """
        from retrotape.diagnose.nonfinite import first_nonfinite  # imported late: most programs never need it

        session = self._recorded()
        if not isinstance(session, EagerSession):
            raise TapeUseError(
                f"first_nonfinite reads values, and inside a tf.function there are none. {IN_EAGER_CODE}"
            )
        with session.trace.explained():
            if target is None:
                return first_nonfinite(session.trace, (), self._named_tensors())
            return first_nonfinite(session.trace, self._targets(session, target))

    def _named_tensors(self) -> list[int]:
        return [identity_of(what) for what in self._names().values() if not isinstance(what, VARIABLES)]

    @locked
    def summary(self) -> Summary:
        """Return what ran by layer and line, with shapes, values kept and bytes; printing it gives a table.

        Keras layers are known from their calls, and named by their path, from the outermost model on. Outside Keras,
        an op is attributed to the layer whose variables, such as "dense/kernel", were last read on its line.

        >>> w = tf.Variable(tf.ones([2, 3]), name="dense/kernel")
        >>> with rt.Tape() as tape:
        ...     for _ in range(4):
        ...         y = tf.nn.relu(tf.ones([1, 2]) @ w)
        >>> [(row.layer, row.ops["Relu"], row.output) for row in tape.summary().rows if row.layer]
        [('dense', 4, 'float32[1,3]')]
        """
        return summarize(self._eager("summary").trace)

    @locked
    def why_not_compiled(self) -> str | None:
        """Return why the last query ran op by op; None if it ran as one compiled function.

        Queries that come again on tapes of the same structure are compiled, from about the third time on. The results
        are the same either way. `rt.config(compile=False)` switches it off.

        >>> w = tf.Variable(2.0)
        >>> for _ in range(5):
        ...     with rt.Tape() as tape:
        ...         loss = w * w
        ...     grads = tape.gradient(loss, [w])
        >>> print(tape.why_not_compiled())
        None
        >>> print(rt.Tape().why_not_compiled())
        no query has run on this tape
        """
        session = self._session
        return NO_QUERY if session is None else session.trace.not_compiled

    @locked
    def tensors(
        self,
        op: str | None = None,
        layer: str | None = None,
        name: str | None = None,
        line: int | str | None = None,
        *,
        call: int | None = None,
    ) -> Tensors:
        """Return intermediate tensors, in the order in which they were made; each can be a source or a target.

        Values that were not kept are recomputed when they are taken from the result. A call of a `tf.function` is
        one op here; on a tape that was saved and loaded, the ops that ran inside it are found too.

        Args:
          op: The op that made them, such as "Relu".
          layer: The name of a Keras layer, with or without weights: "conv2d", or "model/conv2d". Tensors of layers
            that it called are found too. For most layers the last tensor is the output, even if that is the input
            unchanged, as with a Dropout that is not training.
          name: A name on a tape that has names, or the name of a variable, which stands for the values read from it.
          line: The line of code that ran the op: its number, or "train.py:12".
          call: With `layer`, which call of it: 1 is the first on this tape.

        Raises:
          UnknownLayerError: If no layer of that name was called; it lists those with a name like it.

        >>> x = tf.constant([-1.0, 2.0])
        >>> with rt.Tape() as tape:
        ...     loss = tf.reduce_sum(tf.nn.relu(x * 3.0) ** 2)
        >>> hidden = tape.tensors(op="Relu")[-1]
        >>> hidden.numpy().tolist(), tape.gradient(loss, hidden).numpy().tolist()
        ([0.0, 6.0], [0.0, 12.0])
        """
        trace = self._eager("tensors").trace
        token = trace.token

        def take(var: int) -> Any:
            if trace.token is not token:
                raise TapeUseError(
                    "These tensors are gone: the tape was reset. Read them before the reset: `list(found)`."
                )
            with self._lock:
                return value_of(trace, var)

        return Tensors(find(trace, Wanted(op, layer, name, line, call), self._names()), take)

    @locked_with_names
    def value(self, tensor: Any) -> Any:
        """Return the value of a tensor, variable or name on this tape: recorded, or recomputed.

        >>> x = tf.constant(3.0)
        >>> with rt.Tape(keep="leaves") as tape:
        ...     y = x * x
        >>> float(tape.replay([(x, 2.0)]).value(y))
        4.0
        """
        session = self._eager("value")
        part = self._one(tensor)
        history = session.history(part) if isinstance(part, VARIABLES) else None
        var = session.find(part) if not isinstance(part, VARIABLES) else None if history is None else history.current
        if var is None:
            raise NotRecordedError(describe(part), "it was not used in what was recorded", "Use it inside the block.")
        with session.trace.explained():
            return Values(session.trace)(var)

    @locked_with_names
    def why(self, target: Any, source: Any, *, through_updates: bool = False, since: int | None = None) -> Explanation:
        """Return why a target has a gradient with respect to a source, or none, as a short printable report.

        Args:
          target: A tensor or a variable, or a nest of them, which are summed.
          source: A tensor, a variable, or a value from `at`, or a nest of them.
          through_updates: As for `gradient`.
          since: As for `gradient`.

        Returns:
          An `Explanation`: a verdict with the op that cuts the path, the line that ran it, and what to do; for a nest
          of sources, a nest of them.

        >>> w = tf.Variable(2.0)
        >>> with rt.Tape() as tape:
        ...     loss = tf.stop_gradient(w) * 3.0
        >>> print(tape.why(loss, w).verdict.name, "at", tape.why(loss, w).cut.op)
        STOP_GRADIENT at StopGradient
        """
        options: dict[str, Any] = {"through_updates": through_updates, "since": since}
        if isinstance(source, (list, tuple, dict)):
            return tf.nest.map_structure(lambda one: self.why(target, one, **options), source)
        session, by = self._eager("why"), single(source, "why", "source")
        given = take_apart(target, "target").flat
        parts = [part for part in given if has_derivative(part)] or given  # others are left out of the sum
        if len(parts) == 1 and parts[0] is by and isinstance(by, VARIABLES) and session.history(by) is None:
            said = describe(by)
            return Explanation(Verdict.CONNECTED, said, said, detail="The target is the source itself.")
        results = [part for part in parts if not isinstance(part, VARIABLES) and self._is_result(part)]
        for part in parts:
            self._record_result(part, session)
        found = explain(session, parts, by, **options)
        there = found.verdict in (Verdict.CONNECTED, Verdict.ZERO)
        if results and not there and self.gradient(results, by, **options) is not None:
            detail = "The target is a gradient that does not depend on the source: it is constant."
            return Explanation(Verdict.ZERO, found.target, found.source, detail=detail)
        return found
