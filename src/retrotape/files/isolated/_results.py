"""Results as lists and texts, and unpacked again: explanations, summaries, programs, and their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrotape.aggregate import Rows
from retrotape.diagnose.nonfinite import Cause, Nonfinite
from retrotape.diagnose.summary import Row, Summary
from retrotape.diagnose.tensors import Found
from retrotape.diagnose.why import Explanation, Step, Verdict
from retrotape.ir import Frame, Program, TensorType


def _frame(file: str, line: int, function: str) -> Frame:
    return Frame(str(file), int(line), str(function))


def _type(dtype: int, shape: list[int | None] | None) -> TensorType:
    return TensorType(int(dtype), None if shape is None else tuple(shape))


def _explanation(verdict: str, target: str, source: str, *rest: Any) -> Explanation:
    return Explanation(Verdict[verdict], target, source, *rest)


def _nonfinite(op: str, backward: bool, frame: Frame, inputs: Any, cause: str, *rest: str) -> Nonfinite:
    return Nonfinite(op, backward, frame, inputs, Cause[cause], *rest)


# Class: its name in messages, how to pack it into a list, and how to unpack it. Names in messages never select a class
# outside this table.
_KINDS: dict[type, tuple[str, Callable[[Any], list[Any]], Callable[..., Any]]] = {
    Frame: ("frame", list, _frame),
    TensorType: ("type", lambda one: [one.dtype, None if one.shape is None else list(one.shape)], _type),
    Step: ("step", lambda one: [one.op, one.frame, one.called, one.saved_code], Step),
    Explanation: (
        "explanation",
        lambda one: [
            *(one.verdict.name, one.target, one.source, one.cut),
            *(one.reached, one.leading, one.detail, one.remedy),
        ],
        _explanation,
    ),
    Nonfinite: (
        "nonfinite",
        lambda one: [*one[:3], tuple(one.inputs), one.cause.name, one.detail, one.saved_code],
        _nonfinite,
    ),
    Row: ("row", list, Row),
    Rows: ("rows", lambda one: [list(one), list(one.names), one.losses, one.mixed_by], Rows),
    Summary: ("summary", list, Summary),
    Found: ("found", list, Found),
    Program: ("program", lambda one: [str(one).encode()], lambda text: Program.parse(text.decode())),
}
_UNPACK = {name: unpack for name, _, unpack in _KINDS.values()}


def add_kind(kind: type, name: str, pack: Callable[[Any], list[Any]], unpack: Callable[..., Any]) -> None:
    """Add a class of results that this folder does not know: how to pack it into a list, and how to unpack it."""
    _KINDS[kind] = name, pack, unpack
    _UNPACK[name] = unpack


def pack_result(value: Any) -> tuple[str, Any] | None:
    """Return the representation of a result in a message; None if it is of another kind."""
    for kind, (name, fields, _) in _KINDS.items():
        if isinstance(value, kind):
            return name, fields(value)
    return None


def unpack_result(kind: str, fields: Any) -> Any:
    """Return the result that a message holds.

    Raises:
      KeyError: If there is no such kind.
    """
    return _UNPACK[kind](*fields)
