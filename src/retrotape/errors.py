"""Every exception of the library. Each owns its text: what was got, what was expected, what to type next."""

from __future__ import annotations

from collections.abc import Sequence


class RetrotapeError(Exception):
    """The base class of all errors that retrotape raises."""

    # Tells AutoGraph to let these out of a tf.function as they are, not as an error of its own.
    ag_pass_through = True


class MissingTensorFlowError(RetrotapeError, ImportError):
    """Neither `tensorflow` nor `tensorflow-cpu` is installed."""

    def __init__(self) -> None:
        super().__init__(
            "retrotape needs TensorFlow 2.16 to 2.21 and found none. "
            'Install one: `pip install "retrotape[tf]"`, or `pip install "retrotape[cpu]"` for the CPU build.'
        )


class IncompatibleTensorFlowError(RetrotapeError):
    """TensorFlow's internals are not what this version of retrotape was written against."""

    def __init__(self, version: str, detail: str) -> None:
        self.version, self.detail = version, detail
        super().__init__(
            f"retrotape cannot record on TensorFlow {version}: {detail}. "
            "Tried versions are 2.16 to 2.21; install one of them, or a newer retrotape."
        )


class MalformedProgramError(RetrotapeError, ValueError):
    """A program breaks the rules of single assignment."""


class NotRecordedError(RetrotapeError, ValueError):
    """A target was not made while the tape was recording."""

    def __init__(self, target: str, reason: str, remedy: str, role: str = "target") -> None:
        self.target, self.reason = target, reason
        super().__init__(f"The {role} {target} is not on this tape: {reason}. {remedy}")


_INSIDE = (
    "Open the tape inside the replica function and ask there: `def step(x): with rt.Tape() as tape: ...; return "
    "tape.gradient(...)`, then `strategy.run(step, ...)`; or, in one process, call `strategy.run` in eager code inside "
    "the block: `with rt.Tape() as tape: ...`."
)


class ReplicaError(NotRecordedError):
    """The answer depends on other replicas of a `tf.distribute.Strategy`, of which the tape knows too little."""

    def __init__(self, problem: str, remedy: str = _INSIDE) -> None:
        self.target, self.reason = "", problem
        RetrotapeError.__init__(self, f"{problem}. {remedy}")

    @classmethod
    def on_path(cls, what: str) -> ReplicaError:
        """Return the error for a path through `what`."""
        return cls(f"The path from the source to the target passes {what}, which this tape has not recorded")


class NotDifferentiableError(RetrotapeError, TypeError):
    """A target has a dtype that has no derivative."""

    def __init__(self, target: str, dtype: str) -> None:
        self.target, self.dtype = target, dtype
        super().__init__(
            f"The target {target} has dtype {dtype}; a target must be floating point or complex. "
            "Compute it in floating point, or ask about what it was computed from."
        )


class NotDifferentiableWarning(UserWarning):
    """A target has a dtype that has no derivative, so that there is no gradient: the result is None."""


class NotASourceError(RetrotapeError, TypeError, ValueError):
    """Something that is neither tensor nor variable was given as source or target."""

    def __init__(self, role: str, got: object) -> None:
        self.role, self.got = role, got
        hint = "Give the tensor that took part in the recording, or a nest of such tensors."
        if type(got).__name__ == "KerasTensor":
            hint = "It is symbolic: ask about the tensor that the model returned when it was called with data."
        elif hasattr(got, "_type_spec"):
            hint = "It consists of several tensors: ask about one of them, such as its `values`."
        elif type(got).__module__ == "numpy":
            hint = (
                "An array is not recorded: give the tensor that was made of it, `x = tf.constant(array)`, and use that."
            )
        elif hasattr(got, "trainable_variables"):
            hint = "Did you mean its `trainable_variables`?"
        super().__init__(f"A {role} must be a tensor, a tf.Variable or a Keras variable, got {_brief(got)}. {hint}")


class EmptyTapeError(RetrotapeError, RuntimeError):
    """A question was asked of a tape that holds nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"This tape holds no recording: {reason}. Record first: `with tape: loss = ...`, then ask.")


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
    """A tape was entered, left or asked in a place where that has no meaning."""


class NoRuleError(RetrotapeError, LookupError):
    """The path passes an op for which TensorFlow has no gradient registered."""

    def __init__(self, op: str, where: str) -> None:
        self.op, self.where = op, where
        super().__init__(
            f"The path from the target to a source passes {op} (at {where}), for which TensorFlow has no gradient. "
            "Cut the path there with `tf.stop_gradient`, or wrap the op in `tf.custom_gradient`."
        )


class UnseenByStockTapeError(RetrotapeError, NotImplementedError):
    """A `tf.GradientTape` was asked for the derivative of an answer of which it has not seen everything."""

    def __init__(self) -> None:
        super().__init__(
            "This gradient was computed through a tf.recompute_grad, which hides from an outer tf.GradientTape what "
            "it runs, so the derivative of the gradient on that tape would lack a part. Use rt.Tape for the outer "
            "tape too, or ask one rt.Tape twice."
        )


class OpaqueUpdateError(RetrotapeError, RuntimeError):
    """The path runs through an update of a variable that has no derivative rule."""

    def __init__(self, op: str, variable: str, where: str) -> None:
        self.op, self.variable, self.where = op, variable, where
        super().__init__(
            f"The path runs through {op} (at {where}), which changes {variable} in place and has no derivative rule. "
            "Update the variable with `assign` or a Keras optimizer, outside of `tf.function`."
        )


class UnseenUpdateError(RetrotapeError, RuntimeError):
    """A path through updates crosses one that was not recorded."""

    def __init__(self, variable: str) -> None:
        self.variable = variable
        super().__init__(
            f"The target depends on a value of {variable} that was assigned while this tape was not recording, so the "
            "path through its updates is broken there. Assign it inside the `with` block, or ask from that value on: "
            "`since=k`, or without `through_updates`."
        )


class UnrepairableError(RetrotapeError, NotImplementedError):
    """A second derivative that TensorFlow has wrong passes a function into which retrotape cannot look."""

    def __init__(self, function: str, where: str) -> None:
        self.function, self.where = function, where
        super().__init__(
            f"The second derivative passes {function} (called at {where}), which contains `tf.nn.moments` or "
            "`tf.nn.softmax_cross_entropy_with_logits`. TensorFlow has their second derivatives wrong, and retrotape "
            "cannot look into this function to put them right. Call the model itself there, not wrapped in a function, "
            "or record in eager code."
        )


class LostValueError(RetrotapeError, RuntimeError):
    """A value is needed that was neither kept nor can be computed again."""

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        super().__init__(f"{what}. {remedy}")


class UnknownSourceError(RetrotapeError, KeyError):
    """A gradient was asked for of something that it was not taken by."""

    def __init__(self, name: str, known: Sequence[str], is_text: bool = False) -> None:
        self.name, self.known = name, tuple(known)
        meant = did_you_mean(name.strip("'\""), known) if is_text else ""
        super().__init__(
            f"There is no gradient by {name} here. There are those by: {', '.join(known) or 'none'}.{meant} "
            "Name it when you ask: `tape.backward(loss, wrt=[...])`."
        )

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows its text in quotes otherwise


class UnknownVariableError(RetrotapeError, ValueError):
    """An optimizer is to change a variable that it was not built for."""

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
    """A gradient or tangent that was handed in does not fit."""


def _brief(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


class CorruptTapeError(RetrotapeError, ValueError):
    """A file is damaged, cut short, or no tape at all."""

    def __init__(self, path: str, problem: str, remedy: str | None = None) -> None:
        self.path, self.problem = path, problem
        remedy = remedy or "Copy it again from where it was made, or save it anew."
        super().__init__(f"Cannot read the tape {_one_line(path)}: {problem}. {remedy}")


class UnsafeTapeError(RetrotapeError, ValueError):
    """A file has what only a forged tape has, or is larger than what was agreed to."""

    def __init__(self, path: str, problem: str, remedy: str | None = None) -> None:
        self.path, self.problem = path, problem
        remedy = remedy or "retrotape writes no such file: ask whoever made it for a new one."
        super().__init__(f"Refused to read the tape {_one_line(path)}: {problem}. {remedy}")


class TapeVersionError(RetrotapeError, ValueError):
    """A tape was written by a version of the library that knew more."""

    def __init__(self, path: str, needs: str, known: str) -> None:
        self.path, self.needs, self.known = path, needs, known
        super().__init__(
            f"The tape {_one_line(path)} needs {needs}; this version of retrotape reads {known}. "
            "Install a newer one: `pip install --upgrade retrotape`."
        )


class TapeWriteError(RetrotapeError, OSError):
    """A tape could not be saved; what was there before is still there."""

    def __init__(self, path: str, problem: str, remedy: str, errno: int | None = None) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"Could not save the tape {_one_line(path)}: {problem}. {remedy}")
        self.errno = errno


def _one_line(text: str) -> str:
    return text if text.isprintable() else repr(text)


class NotPersistableError(RetrotapeError, ValueError):
    """Something that was recorded cannot be written to a file."""

    def __init__(self, index: int, op: str, where: str, reason: str, remedy: str = "") -> None:
        self.index, self.op, self.where, self.reason = index, op, where, reason
        advice = f"{remedy[:1].upper()}{remedy[1:]}, or keep" if remedy else "Keep"
        super().__init__(
            f"Equation {index}, {op} at {where}, cannot be saved: {reason}. "
            f"{advice} what it gave as a constant, without derivative: `tape.save(path, freeze=[{op!r}])`."
        )


class TooDeepError(RetrotapeError, ValueError):
    """A derivative was asked of a saved tape that goes through more custom gradients than were saved."""

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        super().__init__(
            f"The custom gradient {name!r} was saved with {depth} derivatives of its derivative, and one more is asked "
            "for. Ask the tape that was recorded, in the process that has the code."
        )


class ReplayError(RetrotapeError, ValueError):
    """A replay came to a place where Python had looked at a value, or may have at a size, that is another one now."""

    def __init__(self, where: str, how: str, size: str = "") -> None:
        self.where, self.how = where, how
        looked = f"Python looked at a value ({how}), and with the new inputs it is another one"
        super().__init__(
            f"At {where} {size or looked}: "
            "what was recorded after it may not be what would run now. Record again with the new inputs, "
            "or say that it does not matter: `tape.replay(..., trust=True)`."
        )


class UnknownNameError(RetrotapeError, KeyError):
    """A tape has nothing of that name."""

    def __init__(self, name: str, known: Sequence[str], hint: str = "") -> None:
        self.name = name
        shown = f"its names are {_listed(known)}" if known else "it has no names"
        super().__init__(
            f"This tape has nothing named {name!r}; {shown}.{did_you_mean(name, known)}{' ' * bool(hint)}{hint}"
        )

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show it in quotes


class UnknownLayerError(RetrotapeError, LookupError):
    """No layer of that name was called while a tape recorded."""

    def __init__(self, name: str, known: Sequence[str], near: Sequence[str] = ()) -> None:
        self.name, self.known, self.near = name, tuple(known), tuple(near)
        listed = ", ".join(map(repr, known[:12])) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Its layers are {listed or 'none'}."
        super().__init__(f"This tape has no layer {name!r}. {hint} `print(tape.summary())` shows all that ran.")


class AmbiguousNameError(UnknownNameError):
    """A name may stand for several things on a tape."""

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        self.name, self.candidates = name, tuple(candidates)
        KeyError.__init__(self, f"{name!r} may be any of {_listed(candidates)}. Give more of the name.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a question that names what somebody may have meant; "" where nothing is near.

    >>> did_you_mean("dense/kernal", ["model/dense/kernel", "loss"])
    " Did you mean 'model/dense/kernel'?"
    """
    from difflib import get_close_matches  # late: most programs make no mistake

    steps = name.count("/") + 1
    ends = {"/".join(one.split("/")[-steps:]).lower(): one for one in reversed(known)}
    whole = {one.lower(): one for one in reversed(known)}
    near = get_close_matches(name.lower(), whole, 1) or get_close_matches(name.lower(), ends, 1)
    return f" Did you mean {({**ends, **whole})[near[0]]!r}?" if near else ""


class IsolationError(RetrotapeError, RuntimeError):
    """The process that holds an isolated tape could not be had, or has ended."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.reason = reason
        advice = f" If you trust the file, {remedy}." if remedy else ""
        super().__init__(f"The process that holds the isolated tape gives no answer: {reason}.{advice}")


class RemoteError(RetrotapeError, RuntimeError):
    """A question failed in the process that holds an isolated tape, with an error of TensorFlow's or Python's."""

    @staticmethod
    def of(name: str, text: str, ours: bool) -> RetrotapeError:
        """Return the error that was raised there: of the same class where it is one of this library."""
        kind = globals().get(name) if ours else None
        if not (isinstance(kind, type) and issubclass(kind, RetrotapeError)):
            return RemoteError(f"{name}: {text}")
        error = kind.__new__(kind)
        Exception.__init__(error, text)
        return error


class MissingGradientError(RetrotapeError, ValueError):
    """A source has no gradient, and the question was asked with `none="raise"`."""

    def __init__(self, source: str, explanation: str, others: int = 0) -> None:
        self.source, self.explanation, self.others = source, explanation, others
        more = f" (and by {others} more of the sources)" if others else ""
        super().__init__(f"There is no gradient by {source}{more}.\n{explanation}")
