"""Errors about tapes in files, and about names on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from retrotape.errors._base import RetrotapeError, did_you_mean, listed, printable, without_controls

_LONGEST = 4096  # characters of a path


class CorruptTapeError(RetrotapeError, ValueError):
    """A file is damaged, cut short, or no tape at all."""

    def __init__(self, path: str, problem: str, remedy: str | None = None) -> None:
        self.path, self.problem = path, problem
        remedy = remedy or "Copy it again from where it was made, or save it again."
        super().__init__(f"Cannot read the tape {printable(path, _LONGEST)}: {problem}. {remedy}")


class UnsafeTapeError(RetrotapeError, ValueError):
    """A file has content that only a forged tape has, or exceeds a limit."""

    def __init__(self, path: str, problem: str, remedy: str | None = None) -> None:
        self.path, self.problem = path, problem
        remedy = remedy or "retrotape writes no such file: request a new one from its author."
        super().__init__(f"Refused to read the tape {printable(path, _LONGEST)}: {problem}. {remedy}")


class TapeVersionError(RetrotapeError, ValueError):
    """A tape was written by a newer version of the library."""

    def __init__(self, path: str, needs: str, known: str) -> None:
        self.path, self.needs, self.known = path, needs, known
        super().__init__(
            f"The tape {printable(path, _LONGEST)} needs {needs}; this version of retrotape reads {known}. "
            "Install a newer one: `pip install --upgrade retrotape`."
        )


class TapeWriteError(RetrotapeError, OSError):
    """A tape could not be saved; what was there before is still there."""

    def __init__(self, path: str, problem: str, remedy: str, errno: int | None = None) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"Could not save the tape {printable(path, _LONGEST)}: {problem}. {remedy}")
        self.errno = errno


class UrlError(RetrotapeError, OSError):
    """A URL cannot be opened."""

    def __init__(self, url: str, problem: str, remedy: str) -> None:
        self.url, self.problem = url, problem
        super().__init__(f"Cannot open {printable(url, _LONGEST)}: {printable(problem)}. {remedy}")


class BackgroundSaveWarning(UserWarning):
    """A save in the background failed, and nobody asked how it ended."""

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(
            f"The tape {printable(path, _LONGEST)} was not saved in the background. {printable(problem)} "
            "Ask for the result to get this as an error: `tape.save(path, wait=False).result()`."
        )


class NotPersistableError(RetrotapeError, ValueError):
    """Something that was recorded cannot be written to a file."""

    def __init__(self, index: int, op: str, where: str, reason: str, remedy: str = "") -> None:
        self.index, self.op, self.where, self.reason = index, op, where, reason
        advice = f"{remedy[:1].upper()}{remedy[1:]}, or keep" if remedy else "Keep"
        super().__init__(
            f"Equation {index}, {op} at {where}, cannot be saved: {reason}. "
            f"{advice} its result as a constant, without derivative: `tape.save(path, freeze=[{op!r}])`."
        )


class TooDeepError(RetrotapeError, ValueError):
    """A query of a saved tape needs more derivatives of a custom gradient than were saved."""

    def __init__(self, name: str, depth: int) -> None:
        self.name = name
        super().__init__(
            f"The custom gradient {name!r} was saved with {depth} derivatives of its derivative, and this query needs "
            "one more. Query the tape that was recorded, in the process that has the code."
        )


class ReplayError(RetrotapeError, ValueError):
    """A replay reached a line where Python read a value, or may have read a size, that is different now."""

    def __init__(self, where: str, how: str, size: str = "") -> None:
        self.where, self.how = where, how
        different = f"Python read a value ({how}) that is different with the new inputs"
        super().__init__(
            f"At {where} {size or different}: "
            "the ops that were recorded after it may not be those that would run now. Record again with the new "
            "inputs, or ignore the difference: `tape.replay(..., trust=True)`."
        )


class UnknownNameError(RetrotapeError, KeyError):
    """A tape has nothing with that name."""

    def __init__(self, name: str, known: Sequence[str], hint: str = "") -> None:
        self.name = name
        shown = f"its names are {listed(known)}" if known else "it has no names"
        super().__init__(
            f"This tape has nothing named {name!r}; {shown}.{did_you_mean(name, known)}{' ' * bool(hint)}{hint}"
        )

    def __str__(self) -> str:
        return without_controls(str(self.args[0]))  # KeyError would show it in quotes


class AmbiguousNameError(UnknownNameError):
    """A name may refer to several things on a tape."""

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        self.name, self.candidates = name, tuple(candidates)
        KeyError.__init__(self, f"{name!r} may be any of {listed(candidates)}. Give more of the name.")


class IsolationError(RetrotapeError, RuntimeError):
    """The process that holds an isolated tape could not be started, or has ended; `reason` says how."""

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}. {remedy}.")


class RemoteError(RetrotapeError, RuntimeError):
    """A query failed in the process that holds an isolated tape, with an error of TensorFlow or Python."""

    @staticmethod
    def of(name: str, text: str, ours: bool, fields: Mapping[str, object]) -> Exception:
        """Return the error that was raised there: of the same class if that is one of this library's or a builtin."""
        kind: type[Exception] | None = getattr(import_module(RetrotapeError.__module__), name, None) if ours else None
        kind = _PLAIN.get(name) if kind is None and not ours else kind
        if not (isinstance(kind, type) and issubclass(kind, (RetrotapeError, *_PLAIN.values()))):
            return RemoteError(f"{name}: {text}")
        error = kind.__new__(kind)
        Exception.__init__(error, text)
        vars(error).update(fields)
        return error


# What invalid arguments raise, in either process.
_PLAIN: dict[str, type[Exception]] = {
    "IndexError": IndexError,
    "KeyError": KeyError,
    "TypeError": TypeError,
    "ValueError": ValueError,
}
