"""The program as data: what a tape has recorded, frozen, in single assignment form.

    program ::= var*  eqn*  frame*
    eqn     ::= var+ = op[attr*](var*) @frame

A *var* is a number. Its type stands in `Program.types`, its defining equation in `Program.producers`
(`LEAF` where the value came from outside). A variable of TensorFlow is not in the program: each
*value* that it had is a var of its own. An op that reads a variable takes that var instead of
the resource handle, and an op that writes one has one more output, the new value.

Nothing here imports TensorFlow; dtypes are its `DataType` numbers, which are part of its file format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Union

from retrotape import _html
from retrotape.ir._facts import Facts

LEAF = -1
_SHOWN = 200  # equations in a notebook
# Not ops of TensorFlow: an equation that has a backward function of its own, and three by which the workers of a
# job communicate. One worker has recorded only its own values; the programs of all workers together give the result.
CUSTOM = "custom_gradient"
ALL_REDUCE, ALL_GATHER, BROADCAST = "all_reduce", "all_gather", "broadcast"
COLLECTIVES = frozenset((ALL_REDUCE, ALL_GATHER, BROADCAST))
OWN_OPS = COLLECTIVES | {CUSTOM}

DTYPE_NAMES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "qint8",
    12: "quint8",
    13: "qint32",
    14: "bfloat16",
    15: "qint16",
    16: "quint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    20: "resource",
    21: "variant",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    26: "float8_e4m3fnuz",
    27: "float8_e4m3b11fnuz",
    28: "float8_e5m2fnuz",
    29: "int4",
    30: "uint4",
    31: "int2",
    32: "uint2",
}
DTYPE_NUMBERS = {name: number for number, name in DTYPE_NAMES.items()}


class TensorType(NamedTuple):
    """The dtype and shape of a var.

    >>> str(TensorType(1, (2, None)))
    'float32[2,?]'
    """

    dtype: int
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        name = DTYPE_NAMES.get(self.dtype, f"dtype{self.dtype}")
        if self.shape is None:
            return f"{name}[...]"
        return f"{name}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


_BITS = {"bool": 8, "complex64": 64, "complex128": 128, "bfloat16": 16}


def bytes_of(kind: TensorType) -> int:
    """Return how many bytes a value of this type has; 0 where that is not known.

    >>> bytes_of(TensorType(1, (2, 3)))
    24
    """
    name = DTYPE_NAMES.get(kind.dtype, "")
    bits = _BITS.get(name)
    if bits is None:
        digits = re.match(r"q?u?(?:int|float)(\d+)", name)
        bits = int(digits[1]) if digits else 0
    if kind.shape is None or None in kind.shape:
        return 0
    return math.prod(kind.shape) * bits // 8  # type: ignore[arg-type]


class DType(NamedTuple):
    """A dtype as an attribute of an op."""

    number: int


class Shape(NamedTuple):
    """A shape as an attribute of an op; None where the rank is unknown."""

    dims: tuple[int, ...] | None


class Func(NamedTuple):
    """The name of a function as an attribute of an op."""

    name: str


class Proto(NamedTuple):
    """A serialized TensorProto as an attribute of an op."""

    data: bytes


AttrValue = Union[  # noqa: UP007 - a recursive alias needs this spelling on Python 3.10
    bool, int, float, bytes, DType, Shape, Func, Proto, tuple["AttrValue", ...]
]
Attr = tuple[str, AttrValue]


class Frame(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Eqn(NamedTuple):
    """One op that ran: `outputs = op[attrs](inputs)`, at the line `Program.frames[frame]`."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: tuple[Attr, ...]
    frame: int


@dataclass(frozen=True, repr=False)
class Program:
    """Everything that a tape has recorded, in execution order: frozen data.

    For a tape that is still recording it is a window: later ops are not in it.

    Attributes:
      types: Dtype and shape of each var, indexed by the var's number.
      producers: The index of the equation that made each var; `LEAF` for inputs.
      eqns: The ops that ran.
      frames: The lines of the user's code that ran them.
      facts: What else is known: variables, backward functions, host reads, layers. Not part of the text.

    >>> two = Program((TensorType(1, ()), TensorType(1, ())), (LEAF, 0), (Eqn("Neg", (0,), (1,), (), 0),),
    ...               (Frame("loop.py", 3, "step"),))
    >>> print(two)
    %0 : float32[]
    %1 : float32[] = Neg(%0) @0
    @0 = "loop.py":3 in "step"
    """

    types: Sequence[TensorType]
    producers: Sequence[int]
    eqns: Sequence[Eqn]
    frames: Sequence[Frame]
    facts: Facts = field(default_factory=Facts, compare=False)

    def leaves(self) -> list[int]:
        """Return the vars whose value came from outside."""
        return [var for var, producer in enumerate(self.producers) if producer == LEAF]

    def frame_of(self, eqn: Eqn) -> Frame:
        """Return the line of the user's code that ran `eqn`."""
        return self.frames[eqn.frame]

    def __reduce__(self) -> tuple[Any, ...]:
        """Let copies in other processes have no facts, for these hold handles and functions of this process."""
        return Program, tuple(tuple(column) for column in (self.types, self.producers, self.eqns, self.frames))

    def __str__(self) -> str:
        from retrotape.ir._text import render

        return render(self)

    def __repr__(self) -> str:
        return f"<program: {len(self.eqns):,} equations, {len(self.types):,} vars; print it to see them>"

    def _repr_html_(self) -> str:
        from retrotape.ir._text import render_first

        title = f"program: {len(self.eqns):,} equations, {len(self.types):,} vars"
        return _html.folded(title, _html.text(render_first(self, _SHOWN)))

    @staticmethod
    def parse(text: str) -> Program:
        """Parse the text that `str` returns."""
        from retrotape.ir._text import parse

        return parse(text)


class FunctionProgram(NamedTuple):
    """A backward function as data: a program from cotangents and captured values to cotangents.

    Attributes:
      program: What it computes; its facts have the backward functions of custom gradients inside.
      cotangents: The leaves for the incoming cotangents.
      captures: The leaves for the captured values.
      results: For each of its inputs, the vars of the cotangent: one; three for `tf.IndexedSlices` (values, indices,
        dense shape); none for None.
    """

    program: Program
    cotangents: tuple[int, ...]
    captures: tuple[int, ...]
    results: tuple[tuple[int, ...], ...]
