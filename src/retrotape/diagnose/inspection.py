"""Looking into what was recorded: where a NaN comes from, what ran, and any tensor on the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retrotape.diagnose.summary import Summary, summarize
from retrotape.diagnose.tensors import Tensors, Wanted, find, value_of
from retrotape.errors import TapeUseError
from retrotape.query import HigherOrder, locked, pose, question
from retrotape.record import EagerLog
from retrotape.tf.nests import is_variable, take_apart

if TYPE_CHECKING:
    from retrotape.diagnose.nonfinite import Nonfinite

IN_EAGER_CODE = (
    "Run the step in eager code: `model.compile(run_eagerly=True)`, or `tf.config.run_functions_eagerly(True)`."
)


class Inspected(HigherOrder, ABC):
    """What can be found out about a recording itself."""

    @question
    def first_nonfinite(self, target: Any = None) -> Nonfinite | None:
        """Return the op that made the first NaN or infinity, not one that passed it on; None if all is finite.

        Calls of a `tf.function` are looked into, unless they have random draws or Python code inside: these cannot be
        run again op by op, and the call is named as a whole. Values that are not kept are computed again, one after
        the other.

        Args:
          target: Look only at what makes this not finite, or if it is finite, its gradient. Without it, the first op
            that made such a value is named whether it did harm or not; an infinity that was given, if a result has it.
            If there is none, gradients are looked at, of every floating scalar that has a name or that nothing uses
            further. A tape without such scalars is looked at forward only.

        Returns:
          A `Nonfinite`: the op, its line, the ranges of its inputs, why, and what to type instead.

        >>> x = tf.constant([0.0, 1.0])
        >>> with rt.Tape() as tape:
        ...     y = tf.reduce_sum(tf.sqrt(x))
        >>> found = tape.first_nonfinite()
        >>> found.op, found.cause.name, found.backward
        ('Sqrt', 'SQRT_AT_ZERO', True)
        """
        from retrotape.diagnose.nonfinite import first_nonfinite  # late: most programs never ask

        log = self._asked()
        if not isinstance(log, EagerLog):
            raise TapeUseError(
                f"first_nonfinite looks at values, and inside a tf.function there are none. {IN_EAGER_CODE}"
            )
        with log.recording.explained():
            if target is None:
                return first_nonfinite(log.recording, (), self._named_tensors())
            request = pose(log, self._answers, target, take_apart([], "source"), ones=False)
            return first_nonfinite(log.recording, request.targets)

    def _named_tensors(self) -> list[int]:
        return [what._id for what in self._names().values() if not is_variable(what)]

    @locked
    def summary(self) -> Summary:
        """Return what ran by layer and line, with shapes, values kept and bytes; printing it gives a table.

        Layers are those of Keras that were called, by their names after those of the models that called them. Outside
        of Keras, an op is attributed to the layer whose variables, such as "dense/kernel", were last read on its line.

        >>> w = tf.Variable(tf.ones([2, 3]), name="dense/kernel")
        >>> with rt.Tape() as tape:
        ...     for _ in range(4):
        ...         y = tf.nn.relu(tf.ones([1, 2]) @ w)
        >>> [(row.layer, row.ops["Relu"], row.output) for row in tape.summary().rows if row.layer]
        [('dense', 4, 'float32[1,3]')]
        """
        return summarize(self._eager("summary").recording)

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
        """Return the tensors that were made on the way, in the order in which they were; each is a source or a target.

        What was not kept is computed again when it is taken out of the result. A call of a `tf.function` is one op
        here; on a tape that was saved and loaded, what ran inside is there too.

        Args:
          op: The op that made them, such as "Relu".
          layer: A Keras layer by its name, with or without weights: "conv2d", or "model/conv2d". What ran in layers
            that it called is found too. Of most layers the last one is what they returned, also where that is what
            they were given, as from a Dropout that is not training.
          name: A name on a tape that has names, or a variable, which stands for what was read from it.
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
        recording = self._eager("tensors").recording
        token = recording.token

        def take(var: int) -> Any:
            if recording.token is not token:
                raise TapeUseError("What was found is gone, for the tape was reset. Look for it before: `list(found)`.")
            with self._lock:
                return value_of(recording, var)

        return Tensors(find(recording, Wanted(op, layer, name, line, call), self._names()), take)

    @abstractmethod
    def _eager(self, method: str) -> EagerLog:
        """Return what was recorded in eager code, or raise."""

    @abstractmethod
    def _names(self) -> Mapping[str, Any]:
        """Return what names stand for: vars and variables."""
