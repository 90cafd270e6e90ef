"""The program as data. Standard library only: printing or checking a tape never loads TensorFlow."""

from retrotape.ir._builder import Builder
from retrotape.ir._check import check
from retrotape.ir._fields import NONSENSE, Fields, LayerRow, Malformed, makes_no_sense, printable_frame, read_program
from retrotape.ir._graph import Equations, reached_from, slice_to
from retrotape.ir._program import (
    DTYPE_NAMES,
    DTYPE_NUMBERS,
    LEAF,
    Attr,
    AttrValue,
    DType,
    Eqn,
    Frame,
    Func,
    Program,
    Proto,
    Shape,
    TensorType,
    bytes_of,
)
from retrotape.ir._text import parse, render
from retrotape.ir._ways_back import CUSTOM, Functions, WayBack

__all__ = [
    "CUSTOM",
    "DTYPE_NAMES",
    "DTYPE_NUMBERS",
    "LEAF",
    "NONSENSE",
    "Attr",
    "AttrValue",
    "Builder",
    "DType",
    "Eqn",
    "Equations",
    "Fields",
    "Frame",
    "Func",
    "Functions",
    "LayerRow",
    "Malformed",
    "Program",
    "Proto",
    "Shape",
    "TensorType",
    "WayBack",
    "bytes_of",
    "check",
    "makes_no_sense",
    "parse",
    "printable_frame",
    "reached_from",
    "read_program",
    "render",
    "slice_to",
]
