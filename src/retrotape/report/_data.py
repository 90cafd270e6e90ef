"""The parts of a report, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

NO_PLACE = -1


@dataclass(frozen=True)
class Line:
    """A line of the user's code.

    Attributes:
      file: The file.
      number: The number of the line.
      function: The function that it is in.
      code: Its text; empty if that is not known.
    """

    file: str
    number: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True)
class Stats:
    """What is shown of a tensor; of one with NaNs or infinities, the finite part.

    Attributes:
      norm: The square root of the sum of squares.
      rms: The square root of their mean.
      size: The number of elements.
      nonfinite: How many of them are NaN or infinite.
    """

    norm: float
    rms: float
    size: int
    nonfinite: int = 0


@dataclass(frozen=True)
class Place:
    """A call of a Keras layer; outside of layers, a line.

    Attributes:
      name: The path of the layer, from the outermost one on; or the line, as text.
      is_layer: Whether it is a layer.
      call: Which call of the layer it was, from 1 on; 0 for a line.
      calls: How many calls of the layer there are.
      outer: The number of the place that it is part of, or `NO_PLACE`.
      depth: How many places it is part of.
      ops: How many ops ran there, those of inner places included.
      output: The type of its result; empty if it has none.
      bytes: The size of the values that the tape keeps from it, those of inner places included.
    """

    name: str
    is_layer: bool
    call: int
    calls: int
    outer: int
    depth: int
    ops: int
    output: str
    bytes: int

    @property
    def last_name(self) -> str:
        """The last part of the path; of a line, the file and the number."""
        return self.name.rpartition("/")[2] or self.name

    @property
    def title(self) -> str:
        """The same, with the number of the call if there are several."""
        if self.calls and not self.call and self.is_layer:
            return f"{self.last_name}, built"  # a call without values, or one that failed
        return f"{self.last_name} #{self.call}" if self.calls > 1 else self.last_name


@dataclass(frozen=True)
class Flow:
    """What flows through a place, forward and backward.

    Attributes:
      place: The number of the place.
      forward: Of its result; None if the value is not known.
      backward: Of the gradient with respect to its result; None if there is no path to the loss.
      weights: Of the gradient with respect to the variables that were read there, taken together; None without one.
    """

    place: int
    forward: Stats | None
    backward: Stats | None
    weights: Stats | None


@dataclass(frozen=True)
class Weight:
    """The gradient with respect to a variable.

    Attributes:
      name: The path of the variable.
      shape: Its shape, as text.
      place: The number of the place that first read it, or `NO_PLACE`.
      gradient: Of the gradient; None if there is none.
      value: Of the variable itself; None if it is not known.
      state: "ok", "none", "zero", "rounding" (zero, but for rounding errors), "nonfinite" or "sparse".
      reason: Why there is no gradient.
    """

    name: str
    shape: str
    place: int
    gradient: Stats | None
    value: Stats | None
    state: str
    reason: str = ""


@dataclass(frozen=True)
class Finding:
    """A problem, and what to do about it.

    Attributes:
      kind: Its name: "nan", "none", "zero", "vanishing", "exploding", "dead" or "conflict".
      severity: "error" or "warning".
      title: What it is about, in a few words.
      sentence: What was found.
      remedy: What to do about it.
      detail: The evidence.
      line: Where it is in the user's code.
      names: The variables or layers that it is about.
      places: The numbers of the places that it is about.
    """

    kind: str
    severity: str
    title: str
    sentence: str
    remedy: str
    detail: str = ""
    line: Line | None = None
    names: tuple[str, ...] = ()
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class Node:
    """A place, or several calls of one layer, as drawn."""

    title: str
    place: int
    rank: int
    column: int


@dataclass(frozen=True)
class Drawing:
    """The graph of places down to one depth.

    Attributes:
      depth: How deep layers inside layers are shown.
      nodes: What is drawn.
      edges: Pairs of nodes; those that follow from others are left out.
      skips: Such edges that pass by a node, as those of residual connections do.
    """

    depth: int
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    skips: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Op:
    """An op that ran.

    Attributes:
      name: Its name, or that of the function.
      output: The type of its first output.
      place: The number of the place.
      line: The number of the line.
      kept: How many bytes of its outputs the tape keeps.
    """

    name: str
    output: str
    place: int
    line: int
    kept: int


@dataclass(frozen=True)
class Held:
    """What the tape holds in memory because of one line."""

    line: Line
    bytes: int
    tensors: int


@dataclass(frozen=True)
class Update:
    """A value that a variable got.

    Attributes:
      op: The op that assigned it; empty for an update that was not recorded.
      line: Where that was.
      value: Of the new value; None if it is not known.
      change: Of the difference to the value before it; None if it is not known.
    """

    op: str
    line: Line | None
    value: Stats | None
    change: Stats | None


@dataclass(frozen=True)
class History:
    """A variable over time.

    Attributes:
      name: The path of the variable.
      shape: Its type, as text.
      trainable: Whether it is trainable.
      first: Of its value on entry.
      updates: What was assigned to it; the last ones, if there are many.
      count: How many updates there were.
    """

    name: str
    shape: str
    trainable: bool
    first: Stats | None
    updates: tuple[Update, ...]
    count: int


@dataclass(frozen=True)
class Loss:
    """What gradients are taken of.

    Attributes:
      name: Its name.
      how: How it was chosen, as a sentence.
      type: Its type.
      value: Its value; None if it is not a scalar or not known.
      line: The line that computed it.
    """

    name: str
    how: str
    type: str
    value: float | None
    line: Line | None


@dataclass(frozen=True)
class Cosine:
    """How the gradients of two losses agree: 1 for the same direction, -1 for the opposite one."""

    first: str
    second: str
    value: float
    worst: tuple[tuple[str, float], ...] = ()  # the places where they agree least
    is_summed: bool = True  # not if each was differentiated with respect to variables of its own
