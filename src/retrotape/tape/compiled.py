"""A step that is recorded once and played back: `rt.compile`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

from retrotape import _html
from retrotape.diagnose.nonfinite import Nonfinite
from retrotape.diagnose.summary import Summary
from retrotape.diagnose.why import Explanation
from retrotape.playback import Options, Step, run_many
from retrotape.tape.loaded import LoadedTape


class CompiledStep(Step):
    """A step that is recorded when it is first called, and played back later; `rt.compile` makes it.

    Calling it runs the step. Everything that can be asked of a tape can be asked of its last call, `step.tape`.
    """

    @property
    def tape(self) -> LoadedTape:
        """The tape of the last call, with the values of that call.

        >>> w = tf.Variable(3.0)
        >>> @rt.compile
        ... def step(x):
        ...     return w * x
        >>> for x in (1.0, 2.0):
        ...     y = step(tf.constant(x))
        >>> float(step.tape.gradient(y, w))
        2.0
        """
        return LoadedTape(self.last_trace(), {})

    def why(self, target: Any, source: Any, *, through_updates: bool = False) -> Explanation:
        """Return why a target of the last call has a gradient with respect to a source, or none; see `Tape.why`.

        Args:
          target: A tensor that the step returned, or a variable.
          source: A tensor that was passed in, or a variable.
          through_updates: As for `Tape.gradient`.

        >>> w, unused = tf.Variable(3.0, name="w"), tf.Variable(1.0, name="unused")
        >>> step = rt.compile(lambda x: w * x)
        >>> y = step(tf.constant(1.0))
        >>> print(step.why(y, unused).verdict.name)
        SOURCE_NOT_RECORDED
        """
        return self.tape.why(target, source, through_updates=through_updates)

    def first_nonfinite(self, target: Any = None) -> Nonfinite | None:
        """Return the op that produced the first NaN or infinity in the last call; see `Tape.first_nonfinite`.

        The call is run again op by op, from the values that variables held before it.

        >>> w = tf.Variable(0.0)
        >>> step = rt.compile(lambda x: tf.math.log(w * x))
        >>> for _ in range(2):
        ...     y = step(tf.constant(1.0))
        >>> step.first_nonfinite().op
        'Log'
        """
        return self.tape.first_nonfinite(target)

    def summary(self) -> Summary:
        """Return what the last call ran by layer and line; see `Tape.summary`."""
        return self.tape.summary()

    def __repr__(self) -> str:
        reason = self.why_not_compiled()
        return f"<compiled step {self._name()}: {self._counts()}{f'; {reason}' if reason is not None else ''}>"

    def _repr_html_(self) -> str:
        return _html.text(repr(self)) + self.recordings()._repr_html_()

    def _counts(self) -> str:
        found = self.recordings()
        plays, number = sum(one.plays for one in found), len(found)
        return f"{number} recording{'s' * (number != 1)}, played back {plays} time{'s' * (plays != 1)}"

    def report(self) -> str:
        """Return what is known about the step as text: its recordings, whether it is played back, what ran last.

        >>> step = rt.compile(lambda x: x * 2.0)
        >>> y = step(tf.constant(1.0))
        >>> print(step.report().splitlines()[0])
        1 recording, played back 0 times
        """
        lines = [self._counts(), str(self.recordings())]
        reason = self.why_not_compiled()
        lines += [f"not played back: {reason}"] if reason is not None else ["", str(self.summary())]
        return "\n".join(lines)

    def run(self, dataset: Iterable[Any], steps: int = 1, progress: bool = True) -> Any:
        """Run the step on each element of a dataset, several steps in one call.

        Elements that are tuples are passed as several arguments. Steps of one kind, without values that Python reads,
        run as one function; others run one by one.

        Args:
          dataset: A `tf.data.Dataset`, or an iterable of arguments.
          steps: How many steps run in one call, like `steps_per_execution` in Keras. Elements of anything else than a
            `tf.data.Dataset`, a list or a tuple are taken, and run, one by one: code that yields one may change what
            the step reads.
          progress: Whether to show a progress bar, if it takes longer than two seconds.

        Returns:
          What the steps returned, with a new first axis for steps where they returned tensors.

        >>> total = tf.Variable(0.0)
        >>> @rt.compile
        ... def step(x):
        ...     return total.assign_add(x).read_value()
        >>> [float(y) for y in step.run(tf.data.Dataset.range(4).map(lambda n: tf.cast(n, tf.float32)), steps=2)]
        [0.0, 1.0, 3.0, 6.0]
        """
        return run_many(self, dataset, steps, progress)


@overload
def compile(
    step: Callable[..., Any],
    *,
    jit: bool = False,
    strict: bool = False,
    limit: int = 8,
    keep_state: bool = True,
    audit: bool = True,
) -> CompiledStep: ...


@overload
def compile(
    step: None = None,
    *,
    jit: bool = False,
    strict: bool = False,
    limit: int = 8,
    keep_state: bool = True,
    audit: bool = True,
) -> Callable[[Callable[..., Any]], CompiledStep]: ...


def compile(
    step: Callable[..., Any] | None = None,
    *,
    jit: bool = False,
    strict: bool = False,
    limit: int = 8,
    keep_state: bool = True,
    audit: bool = True,
) -> CompiledStep | Callable[[Callable[..., Any]], CompiledStep]:
    """Return a step that is recorded when it is first called, in plain eager code, and then played back.

    Later calls run what was recorded as one function of TensorFlow, variable updates included. They do so as long as
    the structure, shapes and dtypes of the arguments, Python arguments, values that Python reads, and the Python state
    that the code refers to are the same; otherwise the call is recorded as well.

    Args:
      step: The function. Tensors in its arguments may change from call to call; NumPy arrays are converted to tensors;
        everything else is part of what was recorded.
      jit: Whether XLA compiles what is played back. Results may differ in the last bits.
      strict: Whether to raise a `PlaybackError` if calls cannot be played back. By default they run in eager code, with
        a warning that says why.
      limit: How many recordings there may be for one kind of arguments.
      keep_state: Whether to hold on to what variables held before the last call, for `step.tape` and
        `step.first_nonfinite()`. It takes as much memory as the variables.
      audit: Whether the 8th, 64th, 512th, ... call that could be played back is recorded anew instead, and compared
        with what would have been played back. If it differs, the step runs in eager code from then on, with a warning.

    >>> w = tf.Variable(1.0)
    >>> @rt.compile
    ... def step(x):
    ...     with rt.Tape() as tape:
    ...         loss = (w * x - 6.0) ** 2
    ...     w.assign_sub(0.1 * tape.gradient(loss, w))
    ...     return loss
    >>> [round(float(step(tf.constant(2.0))), 3) for _ in range(4)]
    [16.0, 0.64, 0.026, 0.001]
    >>> len(step.recordings())
    1
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}.")
    if step is None:
        options: dict[str, Any] = {
            "jit": jit,
            "strict": strict,
            "limit": limit,
            "keep_state": keep_state,
            "audit": audit,
        }
        return lambda function: compile(function, **options)
    if not callable(step):
        raise TypeError(f"rt.compile takes a function, got {type(step).__name__}: `rt.compile(step)`.")
    return CompiledStep(step, Options(jit, keep_state), strict, limit, audit=audit)
