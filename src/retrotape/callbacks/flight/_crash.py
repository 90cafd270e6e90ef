"""What a crash leaves behind: a tape, a report, and one line."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from retrotape.diagnose.nonfinite import Nonfinite
from retrotape.errors import RetrotapeError

_FINITE = (
    "But everything on the tape is finite: in eager code, op by op, the step computes something else than it did in "
    "the run, so the tape does not show what happened."
)
_DRAW = ("RngReadAndSkip", "StatefulRandomBinomial")  # from a `tf.random.Generator`: a file cannot run them
_NAME = re.compile(r"crash-(\d{4,})(-step-\d+)?\.\w+")


class Crash(NamedTuple):
    """A step that went wrong, as a flight recorder left it.

    Attributes:
      step: Its number, counted from 0 since training began; None if it could not be told.
      message: What happened, in one line.
      tape: The path of the tape of that step; None if there is none, and the message says why.
      report: The path of the report.
      nonfinite: The op that produced the first non-finite value, if there is one on the tape.
    """

    step: int | None
    message: str
    tape: str | None
    report: str
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

    Args:
      folder: The folder.
      keep: How many crashes stay.
      account: What is known.
      tape: The tape of the step; None if there is none.
      names: As for `tape.save`.
      nonfinite: Whether something on the tape has to be not finite.
    """
    stem = os.path.join(folder, f"crash-{max(_crashes(folder), default=0) + 1:04d}")
    stem += "" if account.step is None else f"-step-{account.step}"
    found, remarks, path = None, list(account.remarks), None
    if tape is not None:
        try:
            found = first_nonfinite(tape, names)
            remarks += [_FINITE] if nonfinite and found is None else []
        except RetrotapeError as error:
            remarks.append(f"Its values could not be searched: {error}")
        try:
            tape.save(f"{stem}.tape", names, freeze=_DRAW)
            path = f"{stem}.tape"
        except (RetrotapeError, OSError) as error:
            remarks.append(f"It could not be saved: {error}")
    message = _message(account, found, remarks, path)
    report = _write_report(stem, message, account, found, tape, path)
    _remove_oldest(folder, keep)
    return Crash(account.step, message, path, report, found)


def first_nonfinite(tape: Any, names: Mapping[str, Any] | None) -> Nonfinite | None:
    """Return what made the loss of a step, its gradient, or else anything on the tape not finite."""
    known = names if names is not None else {name: name for name in tape.names}
    found = tape.first_nonfinite(known["loss"]) if "loss" in known else None
    return found or tape.first_nonfinite()


def _message(account: Account, found: Nonfinite | None, remarks: Sequence[str], path: str | None) -> str:
    parts = [f"retrotape: {account.what}."]
    if found is not None:
        parts += [f"{str(found).splitlines()[0]}. {found.cause.sentence}"]
    parts += [remark if remark.endswith((".", "?")) else f"{remark}." for remark in remarks]
    parts += [f"Tape: {path}" if path else "There is no tape."]
    return " ".join(" ".join(part.split()) for part in parts)


def _write_report(
    stem: str, message: str, account: Account, found: Nonfinite | None, tape: Any, path: str | None
) -> str:
    rows = [message, ""]
    rows += [str(found), ""] if found is not None else []
    rows += [*account.history, ""] if account.history else []
    if path is not None:
        rows += [f"retrotape nan {path}", f"retrotape show {path}", f'tape = rt.load("{path}")', ""]
        rows += [str(tape.summary())]
    with open(f"{stem}.txt", "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("\n".join(rows) + "\n")
    if path is not None and hasattr(tape, "report") and importlib.util.find_spec("jinja2") is not None:
        tape.report(f"{stem}.html")
        return f"{stem}.html"
    return f"{stem}.txt"


def _crashes(folder: str) -> dict[int, list[str]]:
    """Return the files of each crash in a folder."""
    found: dict[int, list[str]] = {}
    for name in os.listdir(folder):
        match = _NAME.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), []).append(name)
    return found


def _remove_oldest(folder: str, keep: int) -> None:
    crashes = _crashes(folder)
    for number in sorted(crashes)[:-keep]:
        for name in crashes[number]:
            os.remove(os.path.join(folder, name))
