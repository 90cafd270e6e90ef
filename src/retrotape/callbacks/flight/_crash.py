"""What a crash leaves behind: a tape, a report, and one line."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from retrotape.callbacks.flight._lock import Lock, remove_if_left
from retrotape.diagnose.nonfinite import Nonfinite
from retrotape.errors import RetrotapeError

_FINITE = (
    "But everything on the tape is finite: in eager code, op by op, the step computes something else than it did in "
    "the run, so the tape does not show what happened."
)
_DRAW = ("RngReadAndSkip", "StatefulRandomBinomial")  # from a `tf.random.Generator`: a file cannot run them
_LOCK = ".lock"
_Result = TypeVar("_Result")
_NAME = re.compile(r"crash-(\d{4,})(-step-\d+)?\.\w+")


class Crash(NamedTuple):
    """A step that went wrong, as a flight recorder left it.

    Attributes:
      step: Its number, counted from 0 since training began; None if it is not known.
      message: What happened, in one line.
      tape: The path of the tape of that step; None if there is none, and the message says why.
      report: The path of the report; None if nothing was written.
      nonfinite: The op that produced the first non-finite value, if there is one on the tape.
    """

    step: int | None
    message: str
    tape: str | None
    report: str | None
    nonfinite: Nonfinite | None


class Account(NamedTuple):
    """What is known about a crash before it is written.

    Attributes:
      step: Its number; None if it is not known.
      what: What happened, as a sentence without its full stop.
      remarks: What the reader has to know about the tape, each a sentence.
      history: Lines about the steps before.
    """

    step: int | None
    what: str
    remarks: Sequence[str] = ()
    history: Sequence[str] = ()

    def with_remarks(self, *remarks: str) -> Account:
        """Return the same with more remarks."""
        return self._replace(remarks=[*self.remarks, *remarks])


def write_crash(
    folder: str,
    keep: int,
    account: Account,
    tape: Any = None,
    names: Mapping[str, Any] | None = None,
    *,
    nonfinite: bool = False,
) -> Crash:
    """Write a tape and a report into a folder, and remove the oldest crashes there.

    Nothing that goes wrong with one of them keeps the others from being written: remarks say what is missing.

    Args:
      folder: The folder.
      keep: How many crashes stay.
      account: What is known.
      tape: The tape of the step; None if there is none.
      names: As for `tape.save`.
      nonfinite: Whether something on the tape has to be not finite.
    """
    with _reserved(folder) as number:
        stem = os.path.join(folder, f"crash-{number:04d}" + ("" if account.step is None else f"-step-{account.step}"))
        remarks, found, path, page = list(account.remarks), None, None, None
        if tape is not None:
            found = _attempt("Its values could not be searched", remarks, lambda: first_nonfinite(tape, names))
            remarks += [_FINITE] if nonfinite and found is None and len(remarks) == len(account.remarks) else []
            path = _attempt("It could not be saved", remarks, lambda: _save(tape, f"{stem}.tape", names))
        if path is not None:
            page = _attempt("There is no page about it", remarks, lambda: _write_page(tape, f"{stem}.html"))
        message = message_of(account, found, remarks, path)
        rows = [message, ""]
        rows += [str(found), ""] if found is not None else []
        rows += [*account.history, ""] if account.history else []
        if path is not None:
            target = " loss" if "loss" in (getattr(tape, "names", ()) if names is None else names) else ""
            rows += [f"retrotape nan {path}{target}", f"retrotape show {path}", f'tape = rt.load("{path}")', ""]
            rows += [_attempt("There is no summary", rows, lambda: str(tape.summary())) or ""]
        text = _attempt("", [], lambda: _write_text(f"{stem}.txt", rows))
    _remove_oldest(folder, keep)
    return Crash(account.step, message, path, page or text, found)


def _attempt(failure: str, remarks: list[str], action: Callable[[], _Result]) -> _Result | None:
    """Return what an action returns; if it raises, None, with a remark that begins so."""
    try:
        return action()
    except Exception as error:  # any: what is known must not get lost
        text = str(error) if isinstance(error, (RetrotapeError, OSError)) else f"{type(error).__name__}: {error}"
        remarks.append(f"{failure}: {text}")
        return None


def _write_text(path: str, rows: Sequence[str]) -> str:
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("\n".join(rows) + "\n")
    return path


def _save(tape: Any, path: str, names: Mapping[str, Any] | None) -> str:
    tape.save(path, names, freeze=_DRAW)
    return path


def _write_page(tape: Any, path: str) -> str | None:
    if importlib.util.find_spec("jinja2") is None:
        return None
    tape.report(path)
    return path


def first_nonfinite(tape: Any, names: Mapping[str, Any] | None) -> Nonfinite | None:
    """Return what made the loss of a step, its gradient, or else anything on the tape not finite."""
    known = names if names is not None else {name: name for name in tape.names}
    found = tape.first_nonfinite(known["loss"]) if "loss" in known else None
    return found or tape.first_nonfinite()


def message_of(account: Account, found: Nonfinite | None, remarks: Sequence[str], path: str | None) -> str:
    """Return what is known about a crash, in one line."""
    parts = [f"retrotape: {account.what}."]
    if found is not None:
        parts += [f"{str(found).splitlines()[0]}. {found.cause.sentence}"]
    parts += [remark if remark.endswith((".", "?")) else f"{remark}." for remark in remarks]
    parts += [f"Tape: {path}" if path else "There is no tape."]
    return " ".join(" ".join(part.split()) for part in parts)


@contextmanager
def _reserved(folder: str) -> Iterator[int]:
    """Reserve the next number for a crash: other processes may write to the same folder."""
    number = 1
    while True:
        number = max([number, *(last + 1 for last in _crashes(folder))])
        path = os.path.join(folder, f"crash-{number:04d}{_LOCK}")
        try:
            lock = Lock(path)
        except FileExistsError:
            continue
        try:
            found = _crashes(folder)
            written = [last for last, names in found.items() if not _has(names, _LOCK)]
            if len(found[number]) == 1 and max(written, default=0) < number:  # else another process was faster
                yield number
                return
        finally:
            lock.remove()


def _crashes(folder: str) -> dict[int, list[str]]:
    """Return the files of each crash in a folder."""
    found: dict[int, list[str]] = {}
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), []).append(name)
    return found


def _remove_oldest(folder: str, keep: int) -> None:
    """Remove all but some crashes with a tape, and as many without: these must not displace the others."""
    for names in _crashes(folder).values():
        for name in names:
            if name.endswith(_LOCK):
                remove_if_left(os.path.join(folder, name))  # else what a killed process has written stays for ever
    crashes = {number: names for number, names in _crashes(folder).items() if not _has(names, _LOCK)}
    for has_tape in (True, False):
        alike = sorted(number for number, names in crashes.items() if _has(names, ".tape") == has_tape)
        for name in (name for number in alike[:-keep] for name in crashes[number]):
            _remove(os.path.join(folder, name))


def _has(names: Sequence[str], suffix: str) -> bool:
    return any(name.endswith(suffix) for name in names)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):  # another process was faster
        os.remove(path)
