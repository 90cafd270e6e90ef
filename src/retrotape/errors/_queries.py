"""Errors about recording, and about queries."""

from __future__ import annotations

from collections.abc import Sequence

from retrotape._version import KERAS, TENSORFLOW, __version__
from retrotape.errors._base import RetrotapeError, did_you_mean, without_controls


def _span(versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    (first, oldest), (last, newest) = versions
    return f"{first}.{oldest} to {last}.{newest}"


def _install(package: str, versions: tuple[tuple[int, int], tuple[int, int]]) -> str:
    (first, oldest), (last, newest) = versions
    return f'`pip install "{package}>={first}.{oldest},<{last}.{newest + 1}"`'


class MissingTensorFlowError(RetrotapeError, ImportError):
    """Neither `tensorflow` nor `tensorflow-cpu` is installed."""

    def __init__(self) -> None:
        super().__init__(
            f"retrotape needs TensorFlow {_span(TENSORFLOW)} and found none. "
            'Install one: `pip install "retrotape[tf]"`, or `pip install "retrotape[cpu]"` for the CPU build.'
        )


class IncompatibleTensorFlowError(RetrotapeError):
    """The internals of TensorFlow or Keras are not what this version of retrotape was written against.

    Attributes:
      version: The version of TensorFlow.
      keras: The version of Keras where the problem is there; None where it is in TensorFlow.
      detail: What is missing or different.
    """

    def __init__(self, version: str, detail: str, keras: str | None = None) -> None:
        self.version, self.detail, self.keras = version, detail, keras
        found = f"TensorFlow {version}" if keras is None else f"Keras {keras} with TensorFlow {version}"
        package, tested = ("tensorflow", TENSORFLOW) if keras is None else ("keras", KERAS)
        build = " (or tensorflow-cpu)" if keras is None else ""
        super().__init__(
            f"retrotape {__version__} cannot record on {found}: {detail}. Tested versions are {_span(tested)}; install "
            f"one of them, {_install(package, tested)}{build}, or a newer retrotape, `pip install --upgrade "
            "retrotape`. If there is none yet, please report this message; `make compat TF=...` in a checkout "
            "shows what differs."
        )


class UntriedTensorFlowWarning(UserWarning):
    """This version of TensorFlow is not one that retrotape is tested with. It has passed a self test."""

    def __init__(self, version: str) -> None:
        self.version = version
        super().__init__(
            f"retrotape has not been tested with TensorFlow {version}, only with {_span(TENSORFLOW)}. Its internals "
            "are as expected and a self test gave the right gradients, so recording goes on. "
            f"To be sure, {_install('tensorflow', TENSORFLOW)}; to hide this, "
            '`warnings.filterwarnings("ignore", message="retrotape has not been tested")`.'
        )


class MalformedProgramError(RetrotapeError, ValueError):
    """A program breaks the rules of single assignment."""


class NotRecordedError(RetrotapeError, ValueError):
    """A target was not made while the tape was recording."""

    def __init__(self, target: str, reason: str, remedy: str, role: str = "target") -> None:
        self.target, self.reason = target, reason
        super().__init__(f"The {role} {target} is not on this tape: {reason}. {remedy}")


_INSIDE = (
    "Open the tape inside the replica function and query it there: `def step(x): with rt.Tape() as tape: ...; return "
    "tape.gradient(...)`, then `strategy.run(step, ...)`; or, in one process, call `strategy.run` in eager code inside "
    "the block: `with rt.Tape() as tape: ...`."
)

_ON_EVERY_WORKER = (
    "Save the tape on every worker, `tape.save('job/', names)`, and query the whole: `rt.load('job/')`; or open the "
    "tape inside the replica function and query it there."
)


class ReplicaError(NotRecordedError):
    """The result depends on other replicas of a `tf.distribute.Strategy`, which the tape has not recorded."""

    def __init__(self, problem: str, remedy: str = _INSIDE) -> None:
        self.target, self.reason = "", problem
        RetrotapeError.__init__(self, f"{problem}. {remedy}")

    @classmethod
    def on_path(cls, what: str) -> ReplicaError:
        """Return the error for a path through `what`."""
        return cls(f"The path from the source to the target passes {what}, which this tape has not recorded")

    @classmethod
    def across_workers(cls, op: str, replicas: int, where: str) -> ReplicaError:
        """Return the error for a path through a collective op whose other inputs are on other workers."""
        problem = f"The path from the source to the target passes an {op} of {replicas} replicas (at {where})"
        return cls(f"{problem}, and this tape has only the values of one worker", _ON_EVERY_WORKER)


class NotDifferentiableError(RetrotapeError, TypeError):
    """A target has a dtype that has no derivative."""

    def __init__(self, target: str, dtype: str) -> None:
        self.target, self.dtype = target, dtype
        super().__init__(
            f"The target {target} has dtype {dtype}; a target must be floating point or complex. "
            "Compute it in floating point, or query what it was computed from."
        )


class GuessedLossWarning(UserWarning):
    """A step was logged without a loss, and several scalars could be it."""

    def __init__(self, where: str, count: int) -> None:
        super().__init__(
            f"Took {where} for the loss, the last of {count} scalars that no op used. "
            "If that is not it, give it: `tape.log(writer, step, loss)`."
        )


class NotDifferentiableWarning(UserWarning):
    """A target has a dtype that has no derivative, so that there is no gradient: the result is None."""


class NotASourceError(RetrotapeError, TypeError, ValueError):
    """Something that is neither tensor nor variable was given as source or target."""

    def __init__(self, role: str, got: object, composite: bool = False) -> None:
        self.role, self.got = role, got
        hint = "Give a tensor that was used while recording, or a nest of such tensors."
        if type(got).__name__ == "KerasTensor":
            hint = "It is symbolic: give the tensor that the model returned when it was called with data."
        elif composite:
            hint = "It consists of several tensors: give one of them, such as its `values`."
        elif type(got).__module__ == "numpy":
            hint = "An array is not recorded: give the tensor made from it, `x = tf.constant(array)`, and use that."
        elif hasattr(got, "trainable_variables"):
            hint = "Did you mean its `trainable_variables`?"
        super().__init__(f"A {role} must be a tensor, a tf.Variable or a Keras variable, got {_brief(got)}. {hint}")


class EmptyTapeError(RetrotapeError, RuntimeError):
    """A tape without a trace was queried."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"This tape holds no trace: {reason}. Record first: `with tape: loss = ...`, then query it.")


class InterruptedTapeError(RetrotapeError, RuntimeError):
    """The tape was interrupted while it was recording an op."""

    def __init__(self) -> None:
        super().__init__(
            "This tape was interrupted, by Ctrl-C or another exception, while it was recording an op. What it holds "
            "may be incomplete, so it gives no result. Record again: `with rt.Tape() as tape: ...`, or `tape.reset()`."
        )


class KerasBackendError(RetrotapeError, TypeError):
    """What was given belongs to a Keras that does not run on TensorFlow."""

    def __init__(self, backend: str, role: str, got: str) -> None:
        self.backend = backend
        name = {"jax": "JAX", "torch": "torch", "numpy": "NumPy", "openvino": "OpenVINO"}.get(backend, backend)
        super().__init__(
            f"Keras runs on {name} here; retrotape needs KERAS_BACKEND=tensorflow. Got {got} as {role}. Set it before "
            "Keras is imported: `os.environ['KERAS_BACKEND'] = 'tensorflow'`."
        )


class TapeUseError(RetrotapeError, RuntimeError, ValueError):
    """A tape was entered, left or queried where that is not allowed."""


class NoRuleError(RetrotapeError, LookupError):
    """The path passes an op for which TensorFlow has no gradient registered."""

    def __init__(self, op: str, where: str) -> None:
        self.op, self.where = op, where
        super().__init__(
            f"The path from the target to a source passes {op} (at {where}), for which TensorFlow has no gradient. "
            "Cut the path there with `tf.stop_gradient`, or wrap the op in `tf.custom_gradient`."
        )


class UnseenByStockTapeError(RetrotapeError, NotImplementedError):
    """A `tf.GradientTape` is to differentiate a result of which it has not recorded everything."""

    def __init__(self) -> None:
        super().__init__(
            "This gradient was computed through a tf.recompute_grad, or, inside a tf.function, through a loop, a "
            "branch or a call. An outer tf.GradientTape has not seen all that it was computed from, so the derivative "
            "of the gradient on that tape would lack a part. Use rt.Tape for the outer tape too, or query one rt.Tape "
            "twice."
        )


class OpaqueUpdateError(RetrotapeError, RuntimeError):
    """The path runs through an update of a variable that has no derivative rule."""

    def __init__(self, op: str, variable: str, where: str) -> None:
        self.op, self.variable, self.where = op, variable, where
        super().__init__(
            f"The path runs through {op} (at {where}), which changes {variable} in place and has no derivative rule. "
            "Update the variable with `assign` or a Keras optimizer, outside `tf.function`."
        )


class UnseenUpdateError(RetrotapeError, RuntimeError):
    """A path through updates crosses one that was not recorded."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        super().__init__(
            f"The target depends on a value of {variable} that was assigned while this tape was not recording, so the "
            "path through its updates is broken there. Assign it inside the `with` block, or differentiate from "
            "that value on: `since=k`, or without `through_updates`."
        )


class UnrepairableError(RetrotapeError, NotImplementedError):
    """A second derivative that TensorFlow gets wrong passes a function that retrotape cannot inspect."""

    def __init__(self, function: str, where: str) -> None:
        self.function, self.where = function, where
        super().__init__(
            f"The second derivative passes {function} (called at {where}), which contains `tf.nn.moments` or "
            "`tf.nn.softmax_cross_entropy_with_logits`. TensorFlow gets their second derivatives wrong, and retrotape "
            "cannot inspect this function to correct them. Call the model itself there, not wrapped in a function, "
            "or record in eager code."
        )


class PlaybackError(RetrotapeError, RuntimeError):
    """A step cannot be played back."""

    def __init__(self, name: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{name} cannot be played back: {reason}.")


class PlaybackWarning(UserWarning):
    """A step runs in eager code, or does something only when it is recorded."""


class LostValueError(RetrotapeError, RuntimeError):
    """A value is needed that was not kept and cannot be recomputed."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        super().__init__(f"{what}. {remedy}")


class UnknownSourceError(RetrotapeError, KeyError):
    """The gradient with respect to this key was not computed."""

    def __init__(self, name: str, known: Sequence[str], is_text: bool = False) -> None:
        self.name, self.known = name, tuple(known)
        meant = did_you_mean(name.strip("'\""), known) if is_text else ""
        super().__init__(
            f"There is no gradient with respect to {name} here. The sources are: {', '.join(known) or 'none'}.{meant} "
            "Name it in the query: `tape.backward(loss, wrt=[...])`."
        )

    def __str__(self) -> str:
        return without_controls(str(self.args[0]))  # a KeyError shows its text in quotes otherwise


class UnknownVariableError(RetrotapeError, ValueError):
    """An optimizer was given a variable that it was not built for."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(
            f"The optimizer was built for {', '.join(known) or 'no variable'}, and not for {name}. Build it for "
            "all of them before the first step: `optimizer.build([*first.trainable_variables, ...])`."
        )


def grouped(names: Sequence[str], reasons: Sequence[str]) -> str:
    """Return names with the reasons that they have in common.

    >>> grouped(["a", "b", "c"], ["it was not read", "it was not read", ""])
    'a, b (it was not read), c'
    """
    together: dict[str, list[str]] = {}
    for name, reason in zip(names, reasons, strict=True):
        together.setdefault(reason, []).append(name)
    return ", ".join(", ".join(group) + (f" ({reason})" if reason else "") for reason, group in together.items())


class NothingToApplyError(RetrotapeError, ValueError):
    """No variable has a gradient."""

    def __init__(self, names: Sequence[str], reasons: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        self.reasons = tuple(reasons) or ("",) * len(self.names)  # "" where none is known
        super().__init__(
            f"None of the variables has a gradient: {grouped(self.names, self.reasons) or 'there are none'}. "
            "Compute the loss inside the `with` block, from these variables, with TensorFlow ops."
        )


class MissingGradientWarning(RetrotapeError, UserWarning):
    """An optimizer makes a step, and some of the variables have no gradient."""


class ShapeMismatchError(RetrotapeError, ValueError):
    """A gradient or tangent that was passed in does not have the expected shape."""


def _brief(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


class UnknownLayerError(RetrotapeError, LookupError):
    """No layer of that name was called while a tape recorded."""

    def __init__(self, name: str, known: Sequence[str], near: Sequence[str] = ()) -> None:
        self.name, self.known, self.near = name, tuple(known), tuple(near)
        listed = ", ".join(map(repr, known[:12])) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Its layers are {listed or 'none'}."
        super().__init__(f"This tape has no layer {name!r}. {hint} `print(tape.summary())` shows all that ran.")


class MissingGradientError(RetrotapeError, ValueError):
    """A source has no gradient, and the query has `none="raise"`."""

    def __init__(self, source: str, explanation: str, others: int = 0) -> None:
        self.source, self.explanation, self.others = source, explanation, others
        more = f" (and {others} more of the sources)" if others else ""
        super().__init__(f"There is no gradient with respect to {source}{more}.\n{explanation}")
