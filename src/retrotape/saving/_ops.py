"""Which ops a saved tape may name, and what is checked before one of them runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from retrotape import _tf
from retrotape.errors import TapeVersionError, UnsafeTapeError
from retrotape.ir import DType, Eqn, Func, Program, Proto, Shape, TensorType
from retrotape.record import CUSTOM

Tensor = Any
LARGEST_CONSTANT = 2**22  # bytes in an attribute; larger tensors are tensors


@cache
def allowed() -> frozenset[str]:
    """Return the names of the ops that a tape may have, as reviewed."""
    names = Path(__file__).with_name("allowed_ops.txt").read_text().split()
    return frozenset(names) | {CUSTOM}


class OpCheck:
    """Checks the ops of a file.

    Args:
      path: Of the file, for messages.
      more: Names that are allowed too.
    """

    def __init__(self, path: str, more: Collection[str] = ()) -> None:
        self._path = path
        self._allowed = allowed() | set(more)
        self._known: dict[tuple[str, tuple], None] = {}

    def check(self, program: Program) -> None:
        """Raise where a program has an op that may not run, or attributes that it does not take."""
        for eqn in program.eqns:
            key = (eqn.op, tuple((name, type(value)) for name, value in eqn.attrs))
            if key not in self._known:
                self._check_op(eqn)
                self._known[key] = None
            for _, value in eqn.attrs:
                if isinstance(value, (Func, bytes, Proto)):
                    self._check_value(eqn, value)

    def _check_op(self, eqn: Eqn) -> None:
        if eqn.op not in self._allowed:
            raise UnsafeTapeError(
                self._path,
                f"it names the op {eqn.op}, which is not on the list of ops that a tape may run",
                f"If you trust it: `rt.load(path, allow_ops={{{eqn.op!r}}})`.",
            )
        if eqn.op == CUSTOM:
            return
        definition = _tf.op_def(eqn.op)
        if definition is None:
            raise TapeVersionError(
                self._path,
                f"it needs the op {eqn.op}, which TensorFlow {_tf.tf.__version__} does not have",
                "Load it with the TensorFlow that saved it, or a newer one.",
            )
        kinds = {attr.name: attr.type for attr in definition.attr}
        for name, value in eqn.attrs:
            if name not in kinds:
                raise TapeVersionError(
                    self._path,
                    f"op {eqn.op} has an attribute {name!r}, which TensorFlow {_tf.tf.__version__} does not know",
                    "Load it with the TensorFlow that saved it, or a newer one.",
                )
            if not _fits(kinds[name], value):
                raise UnsafeTapeError(self._path, f"attribute {name!r} of op {eqn.op} is not of type {kinds[name]}")

    def _check_value(self, eqn: Eqn, value: Any) -> None:
        if isinstance(value, Func):
            raise UnsafeTapeError(self._path, f"op {eqn.op} calls a function, {value.name!r}, and a tape has none")
        size = len(value.data) if isinstance(value, Proto) else len(value)
        if size > LARGEST_CONSTANT:
            raise UnsafeTapeError(self._path, f"an attribute of op {eqn.op} has {size} bytes")

    # ------------------------------------------------------------------ when an op runs

    def before(self, eqn: Eqn, inputs: Sequence[Tensor], types: Sequence[TensorType]) -> None:
        """Raise where an op would make something much larger than the tape says."""
        count = _COUNTS.get(eqn.op)
        if count is None or not eqn.outputs:
            return
        said, would = types[eqn.outputs[0]].shape, count([tensor.numpy() for tensor in inputs])
        if said is None or None in said or would != math.prod(said):  # type: ignore[arg-type]
            raise UnsafeTapeError(
                self._path, f"op {eqn.op} would make {would} elements where the tape says {TensorType(1, said)}"
            )

    def after(self, eqn: Eqn, outputs: Sequence[Tensor], types: Sequence[TensorType]) -> None:
        """Raise where an op has made something else than the tape says."""
        for var, tensor in zip(eqn.outputs, outputs, strict=False):
            said = types[var]
            if said.dtype != _tf.eager_dtype(tensor) or said.shape != tensor._shape_tuple():
                made = TensorType(_tf.eager_dtype(tensor), tensor._shape_tuple())
                raise UnsafeTapeError(self._path, f"op {eqn.op} makes {made} where the tape says {said}")


_COUNTS: dict[str, Callable[[list[Any]], int]] = {
    "Fill": lambda given: math.prod(int(size) for size in given[0]),
    "BroadcastTo": lambda given: math.prod(int(size) for size in given[1]),
    "Tile": lambda given: math.prod(n * int(times) for n, times in zip(np.shape(given[0]), given[1], strict=True)),
    "Range": lambda given: max(0, math.ceil((float(given[1]) - float(given[0])) / (float(given[2]) or math.nan))),
    "RandomStandardNormal": lambda given: math.prod(int(size) for size in given[0]),
    "RandomUniform": lambda given: math.prod(int(size) for size in given[0]),
    "StatelessRandomNormalV2": lambda given: math.prod(int(size) for size in given[0]),
    "StatelessRandomUniformV2": lambda given: math.prod(int(size) for size in given[0]),
    "ScatterNd": lambda given: math.prod(int(size) for size in given[2]),
    "OneHot": lambda given: np.size(given[0]) * int(given[1]),
}


def _fits(kind: str, value: Any) -> bool:
    if kind.startswith("list("):
        return type(value) is tuple and all(_fits(kind[5:-1], item) for item in value)
    expected: dict[str, Any] = {
        "type": DType,
        "int": int,
        "bool": bool,
        "float": (float, int),
        "string": bytes,
        "shape": Shape,
        "tensor": Proto,
        "func": Func,
    }
    return isinstance(value, expected[kind]) and (kind == "bool" or not isinstance(value, bool))
