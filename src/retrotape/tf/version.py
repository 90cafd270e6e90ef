"""One of the values that a variable had on a tape, for use as a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrotape import _html
from retrotape.tf.core import tf


class Version:
    """Value number `number` of a variable, as returned by `tape.at` and `tape.versions`.

    Attributes:
      variable: The variable.
      number: Which value, counted from 0, the value on entry to the tape.
      count: How many values the variable had.
    """

    __slots__ = ("_load", "count", "number", "token", "var", "variable")

    def __init__(
        self, variable: Any, number: int, count: int, var: int, token: object, load: Callable[[int], Any]
    ) -> None:
        self.variable, self.number, self.count = variable, number, count
        self.var, self.token = var, token  # the token is that of the trace the var belongs to
        self._load = load

    @property
    def value(self) -> Any:
        """The value, as it was recorded."""
        return self._load(self.var)

    @property
    def dtype(self) -> Any:
        """The dtype of the variable."""
        return self.variable.dtype

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the variable."""
        return self.variable.shape

    def numpy(self) -> Any:
        """Return the value as an array."""
        return self.value.numpy()

    def __repr__(self) -> str:
        return f"<{self.variable.name}, value {self.number} of {self.count}{self._when()}: {self._type()}>"

    def _repr_html_(self) -> str:
        row = (self.variable.name, f"{self.number} of {self.count}{self._when()}", self._type())
        return _html.plain_table(("variable", "value", "type"), [row])

    def _when(self) -> str:
        ends = [*(["on entry"] if self.number == 0 else []), *(["the last"] if self.number == self.count - 1 else [])]
        return f" ({', '.join(ends)})" if ends else ""

    def _type(self) -> str:
        return f"{tf.as_dtype(self.dtype).name}[{','.join(map(str, self.shape))}]"


def pick(versions: tuple[Version, ...], k: int) -> Version:
    """Return version number `k`, from the end if negative, or raise."""
    if not -len(versions) <= k < len(versions):
        raise IndexError(
            f"{versions[0].variable.name!r} had {len(versions)} values on this tape, "
            f"numbered 0 to {len(versions) - 1}; got {k}."
        )
    return versions[k]
