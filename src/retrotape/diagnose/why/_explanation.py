"""What `tape.why` returns: a verdict with its witnesses, which prints as a few lines."""

from __future__ import annotations

import linecache
import os
import stat
from dataclasses import dataclass, field
from typing import Any

from retrotape.diagnose.why._verdicts import Verdict
from retrotape.errors import printable
from retrotape.ir import Frame

SHOWN = 8  # ops of a path
_LONGEST = 200  # characters of a line of code
_LARGEST = 2**24  # bytes of a file of code


@dataclass(frozen=True)
class Step:
    """An op on a path.

    Attributes:
      op: Its name in TensorFlow.
      frame: The line of the user's code that ran it.
      called: The Keras function that was called there, such as "ops.argmin"; empty if there was none.
    """

    op: str
    frame: Frame
    called: str = ""

    @property
    def name(self) -> str:
        """What the user called: the Keras function, or the op."""
        return self.called or self.op

    def __str__(self) -> str:
        return f"{self.name} ({self.frame})"


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why a target has a gradient with respect to a source, or none.

    Attributes:
      verdict: What was found.
      target: The target, in words.
      source: The source, in words.
      cut: The first op that passes no gradient on, or the one after which it is zero.
      reached: The ops that the source reaches, up to the cut.
      leading: The ops that lead to the target, from the cut on.
      detail: Further evidence.
      remedy: What to do.
    """

    verdict: Verdict
    target: str
    source: str
    cut: Step | None = None
    reached: tuple[Step, ...] = ()
    leading: tuple[Step, ...] = ()
    detail: str = ""
    remedy: str = field(default="")

    def __str__(self) -> str:
        rows = [
            f"gradient of {self.target} with respect to {self.source}: {self.verdict.name.lower().replace('_', ' ')}"
        ]
        rows.append(f"  {self.verdict.sentence}")
        if self.detail:
            rows.append(f"  {self.detail}")
        if self.cut is not None:
            inside = f" ({self.cut.op})" if self.cut.called else ""
            rows.append(f"  at    {self.cut.name}{inside}, {self.cut.frame}")
            code = code_at(self.cut.frame)
            if code:
                rows.append(f"        {code}")
        if self.reached:
            rows.append(f"  from  the source: {_chain(self.reached)}")
        if self.leading:
            rows.append(f"  to    the target: {_chain(self.leading)}")
        remedy = self.remedy or self.verdict.remedy
        if remedy:
            rows.append(f"  do    {remedy}")
        return "\n".join(rows)

    def __repr__(self) -> str:
        return str(self)

    def __rich__(self) -> str:
        from rich.markup import escape

        return escape(str(self))  # a line of code may have brackets

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        cut = (
            None
            if self.cut is None
            else {"op": self.cut.op, "called": self.cut.name, "file": self.cut.frame.file, "line": self.cut.frame.line}
        )
        return {
            "verdict": self.verdict.name,
            "target": self.target,
            "source": self.source,
            "sentence": self.verdict.sentence,
            "detail": self.detail,
            "cut": cut,
            "reached": [str(step) for step in self.reached],
            "leading": [str(step) for step in self.leading],
            "remedy": self.remedy or self.verdict.remedy,
        }


def code_at(frame: Frame) -> str:
    """Return the line of code, only from a file that is code: an untrusted tape may name any file."""
    if not (frame.file in linecache.cache or (frame.file.endswith(".py") and _is_file(frame.file))):
        return ""
    return printable(linecache.getline(frame.file, frame.line).strip(), _LONGEST)


def _is_file(path: str) -> bool:
    """Return whether there is a regular file of the size of a program: a pipe or a device might never end."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST


def _chain(steps: tuple[Step, ...]) -> str:
    """Return the ops in a row, without the middle of a long path."""
    names = [step.op for step in steps]
    if len(names) > SHOWN:
        names = [*names[: SHOWN // 2], f"… {len(names) - SHOWN} more …", *names[-SHOWN // 2 :]]
    return " → ".join(names)
