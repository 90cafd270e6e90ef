"""The ops that a saved tape may contain, and the checks on them when a file is read."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from retrotape.errors import CorruptTapeError, TapeVersionError, UnsafeTapeError
from retrotape.ir import (
    COLLECTIVES,
    CUSTOM,
    DTYPE_NAMES,
    LEAF,
    DType,
    Eqn,
    Func,
    Program,
    Proto,
    Shape,
    TensorType,
    bytes_of,
    can_return,
    has_own_attrs,
)
from retrotape.record import Kind, default_attrs, traits
from retrotape.rules import allowed
from retrotape.tf import core
from retrotape.tf.core import tf

LARGEST_CONSTANT = 2**22  # bytes in an attribute; larger constants are stored as tensors
_STRING, _RESOURCE = 7, 20
_RANK_LIMIT = 254  # TensorFlow's own
# Windows, and the steps between them: kernels rely on these being neither below the first number nor very large.
_LOWEST = {
    **dict.fromkeys(("block_size", "dilations", "ksize", "ksizes", "rates", "strides"), 1),
    **dict.fromkeys(("depth_radius", "explicit_paddings"), 0),
}
_WIDEST = 2**16
STRING_BYTES = 24  # of one string, empty


class OpCheck:
    """Checks the ops of a file.

    Args:
      path: Of the file, for messages.
      more: Further names that are allowed.
      limit: How many bytes a value may have, and all leaves of a program together.
    """

    def __init__(self, path: str, more: Collection[str], limit: int) -> None:
        self._path = path
        self._allowed = allowed() | set(more)
        self._limit = limit
        self._known: set[tuple[str, tuple]] = set()

    def check(self, program: Program) -> None:
        """Raise if a program has an op that may not run, or a call that the definition of the op does not allow."""
        started = 0
        for var, kind in enumerate(program.types):
            size = self._check_type(var, kind)
            started += size if program.producers[var] == LEAF else 0
        if started > self._limit:
            raise self._too_large("the leaves of its program have", started)
        for index, eqn in enumerate(program.eqns):
            if eqn.frame >= len(program.frames):
                raise CorruptTapeError(
                    self._path, f"equation {index} has frame {eqn.frame}, and there are {len(program.frames)} frames"
                )
            key = (eqn.op, tuple((name, _kind(value)) for name, value in eqn.attrs))
            if key not in self._known:
                self._check_op(eqn)
                self._known.add(key)
            for name, value in eqn.attrs:
                self._check_value(eqn, name, value)
            self._check_signature(index, eqn, program.types)

    def _check_type(self, var: int, kind: TensorType) -> int:
        """Return how many bytes a value of this type has."""
        if kind.dtype not in DTYPE_NAMES:
            raise TapeVersionError(self._path, f"the dtype number {kind.dtype}", "those that it knows by name")
        if not _has_dtype(kind.dtype):
            raise TapeVersionError(
                self._path,
                f"the dtype {DTYPE_NAMES[kind.dtype]}, which TensorFlow {tf.__version__} does not have",
                "Load it with the TensorFlow that saved it, or a newer one.",
            )
        if kind.shape is None or None in kind.shape:
            raise UnsafeTapeError(self._path, f"%{var} is {kind}; every recorded value has a known size")
        if len(kind.shape) > _RANK_LIMIT:
            raise UnsafeTapeError(self._path, f"%{var} has {len(kind.shape)} dimensions, more than {_RANK_LIMIT}")
        if not _is_countable(kind.shape):
            raise UnsafeTapeError(self._path, f"%{var} is {kind}, more than TensorFlow can count")
        count = math.prod(max(1, dim or 1) for dim in kind.shape)  # kernels loop over empty rows too
        size = count * STRING_BYTES if kind.dtype == _STRING else bytes_of(TensorType(kind.dtype, (count,)))
        if size > self._limit:
            raise self._too_large(f"%{var}, {kind}, has", size)
        return size

    def _too_large(self, what: str, size: int) -> UnsafeTapeError:
        return UnsafeTapeError(
            self._path,
            f"{what} {size:,} bytes, more than {self._limit:,}",
            f"If you trust it: `rt.load(path, limits=retrotape.store.Limits(total_bytes={size}))`.",
        )

    def _check_op(self, eqn: Eqn) -> None:
        if eqn.op not in self._allowed:
            raise UnsafeTapeError(
                self._path,
                f"it names the op {eqn.op}, which is not on the list of ops that a tape may run",
                f"If you trust it: `rt.load(path, allow_ops={{{eqn.op!r}}})`.",
            )
        names = [name for name, _ in eqn.attrs]
        if len(set(names)) != len(names):
            raise UnsafeTapeError(self._path, f"op {eqn.op} has an attribute twice")
        if eqn.op == CUSTOM:
            if names != ["name"]:
                raise UnsafeTapeError(self._path, "a custom gradient has other attributes than its name")
            return
        if eqn.op in COLLECTIVES:
            if not has_own_attrs(eqn):
                raise UnsafeTapeError(self._path, f"an {eqn.op} has attributes that it never has")
            return
        definition = core.op_def(eqn.op)
        if definition is None:
            raise TapeVersionError(
                self._path,
                f"the op {eqn.op}, which TensorFlow {core.version} does not have",
                "Load it with the TensorFlow that saved it, or a newer one.",
            )
        kinds = {attr.name: attr.type for attr in definition.attr}
        for name, value in eqn.attrs:
            if name not in kinds:
                raise TapeVersionError(
                    self._path,
                    f"op {eqn.op} with an attribute {name!r}, which TensorFlow {core.version} does not know",
                    "Load it with the TensorFlow that saved it, or a newer one.",
                )
            if not _fits(kinds[name], value):
                raise UnsafeTapeError(self._path, f"attribute {name!r} of op {eqn.op} is not of type {kinds[name]}")
        missing = kinds.keys() - {*names, *dict(default_attrs(eqn.op))}
        if missing:  # TensorFlow would abort the process
            raise CorruptTapeError(self._path, f"op {eqn.op} has no attribute {', '.join(sorted(missing))}")

    def _check_value(self, eqn: Eqn, name: str, value: Any) -> None:
        if isinstance(value, Func):
            raise UnsafeTapeError(self._path, f"op {eqn.op} calls a function, {value.name!r}, and a tape has none")
        lowest = _LOWEST.get(name)
        if lowest is not None and not all(lowest <= size <= _WIDEST for size in np.ravel(value).tolist()):
            raise UnsafeTapeError(self._path, f"attribute {name!r} of op {eqn.op} is not from {lowest} to {_WIDEST}")
        if not _is_sound(value):
            raise UnsafeTapeError(self._path, f"attribute {name!r} of op {eqn.op} is not a valid value")
        size = len(value.data) if isinstance(value, Proto) else len(value) if isinstance(value, bytes) else 0
        if size > LARGEST_CONSTANT:
            raise UnsafeTapeError(self._path, f"an attribute of op {eqn.op} has {size} bytes")

    def _check_signature(self, index: int, eqn: Eqn, types: Sequence[TensorType]) -> None:
        """Raise if the inputs or outputs of an equation do not match its op's signature: kernels may rely on it."""
        given, made = ([types[var] for var in variables] for variables in (eqn.inputs, eqn.outputs))
        if eqn.op == CUSTOM:
            fits = made and given[len(given) - len(made) :] == made
        elif eqn.op in COLLECTIVES:
            fits = can_return(eqn, given, made)
        else:
            fits = _has_signature(eqn, [kind.dtype for kind in given], [kind.dtype for kind in made])
        if not fits:
            raise CorruptTapeError(self._path, f"equation {index} does not match the signature of {eqn.op}")


@lru_cache(64)
def _has_dtype(number: int) -> bool:
    """Return whether this TensorFlow has a dtype: newer versions added some of eight bits and fewer."""
    try:
        tf.as_dtype(number)
    except TypeError:
        return False
    return True


def _has_signature(eqn: Eqn, given: list[int], made: list[int]) -> bool:
    """Return whether dtypes are those of an op; where it takes a variable, a value takes its place."""
    definition, kind = core.op_def(eqn.op), traits(eqn.op).kind
    attrs = {**dict(default_attrs(eqn.op)), **dict(eqn.attrs)}
    takes, gives = (_dtypes(args, attrs) for args in (definition.input_arg, definition.output_arg))  # type: ignore
    held = takes.count(_RESOURCE) if kind is not Kind.PLAIN else 0
    if eqn.op == "AssignVariableOp":
        takes = takes[1:]  # the old value does not matter
    if len(given) != len(takes) or len(made) != len(gives) + (held if kind is Kind.WRITE else 0):
        return False
    pairs = [*zip(given, takes, strict=True), *zip(made, gives, strict=False)]
    return all(got == wanted or (wanted == _RESOURCE and held and got != _RESOURCE) for got, wanted in pairs)


def _dtypes(args: Any, attrs: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for arg in args:
        if arg.type_list_attr:
            found += [kind.number for kind in attrs[arg.type_list_attr]]
            continue
        dtype = attrs[arg.type_attr].number if arg.type_attr else arg.type
        count = attrs[arg.number_attr] if arg.number_attr else 1
        found += [dtype] * min(max(count, 0), 2**20)
    return found


def _kind(value: Any) -> Any:
    """Return the type of an attribute, for a list also of its items: `_fits` is the same for all that share it."""
    return (tuple, frozenset(map(_kind, value))) if type(value) is tuple else type(value)


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


def _is_sound(value: Any) -> bool:
    """Return whether an attribute is in the range that TensorFlow accepts."""
    match value:
        case DType(number):
            return number in DTYPE_NAMES
        case Shape(dims):
            if dims is None:
                return True
            sizes = isinstance(dims, tuple) and len(dims) <= _RANK_LIMIT and all(map(_is_size, dims))
            return sizes and _is_countable(dims)
        case Proto(data):
            return isinstance(data, bytes)
        case tuple():
            return all(map(_is_sound, value))
        case int():
            return -(2**63) <= value < 2**63
    return isinstance(value, (float, bytes))


def _is_size(dim: Any) -> bool:
    return type(dim) is int and -1 <= dim < 2**62


def _is_countable(dims: Sequence[int | None]) -> bool:
    """Return whether TensorFlow can count the elements: it multiplies all sizes but those that are zero."""
    return math.prod(max(1, dim or 1) for dim in dims) < 2**58  # of 16 bytes at most
