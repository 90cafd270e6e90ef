"""What `tape.first_nonfinite` returns: the culprit with its witnesses, which prints as a few lines."""

from __future__ import annotations

from typing import Any, NamedTuple

from retrotape import _html
from retrotape.diagnose.nonfinite._causes import Cause
from retrotape.diagnose.why import code_at
from retrotape.ir import Frame


class Nonfinite(NamedTuple):
    """The op that produced the first non-finite value from finite ones.

    Attributes:
      op: Its name.
      backward: Whether its gradient is what is not finite.
      frame: The line of the user's code that ran it.
      inputs: The range of each of its inputs, as text.
      cause: Why, as far as the values show it.
      detail: The values that show it.
      saved_code: The text of the line, if the tape was saved with it.
    """

    op: str
    backward: bool
    frame: Frame
    inputs: tuple[str, ...]
    cause: Cause
    detail: str = ""
    saved_code: str = ""

    @property
    def code(self) -> str:
        """The text of the line, empty if it is not known."""
        return self.saved_code or code_at(self.frame)

    @property
    def remedy(self) -> str:
        """What to type instead."""
        return self.cause.remedy

    def __str__(self) -> str:
        what = f"the gradient of {self.op}" if self.backward else self.op
        verb = "received" if self.cause is Cause.GIVEN else "produced"
        rows = [f"{what} at {self.frame} {verb} the first non-finite value"]
        rows += [f"        {self.code}"] if self.code else []
        rows.append(f"  from  {', '.join(self.inputs) or 'nothing'}")
        rows.append(f"  why   {self.cause.sentence}")
        rows += [f"        {self.detail}"] if self.detail else []
        rows.append(f"  do    {self.remedy}")
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
        return {
            "op": self.op,
            "backward": self.backward,
            "file": self.frame.file,
            "line": self.frame.line,
            "function": self.frame.function,
            "code": self.code,
            "inputs": list(self.inputs),
            "cause": self.cause.name,
            "sentence": self.cause.sentence,
            "detail": self.detail,
            "remedy": self.remedy,
        }
