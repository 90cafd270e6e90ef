"""What `tape.why` returns: a verdict with its witnesses, which prints as a few lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from retrotape import _html
from retrotape.diagnose.why._verdicts import Verdict
from retrotape.errors import printable
from retrotape.ir import Frame
from retrotape.record import line_of

SHOWN = 8  # ops of a path


@dataclass(frozen=True, repr=False)
class Step:
    """An op on a path.

    Attributes:
      op: Its name in TensorFlow.
      frame: The line of the user's code that ran it.
      called: The Keras function that was called there, such as "ops.argmin"; empty if there was none.
      saved_code: The text of the line, if the tape was saved with it.
    """

    op: str
    frame: Frame
    called: str = ""
    saved_code: str = field(default="", compare=False)

    @property
    def code(self) -> str:
        """The text of the line, empty if it is not known."""
        return self.saved_code or code_at(self.frame)

    @property
    def name(self) -> str:
        """What the user called: the Keras function, or the op."""
        return self.called or self.op

    def __str__(self) -> str:
        return f"{self.name} ({self.frame})"

    def __repr__(self) -> str:
        return f"<{self}>"


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
            if self.cut.code:
                rows.append(f"        {self.cut.code}")
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

    def _repr_html_(self) -> str:
        return _html.text(str(self))

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
    return printable(line_of(frame))


def _chain(steps: tuple[Step, ...]) -> str:
    """Return the ops in a row, without the middle of a long path."""
    names = [step.op for step in steps]
    if len(names) > SHOWN:
        names = [*names[: SHOWN // 2], f"… {len(names) - SHOWN} more …", *names[-SHOWN // 2 :]]
    return " → ".join(names)
