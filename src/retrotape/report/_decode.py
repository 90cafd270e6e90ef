"""Plain data → dataclasses, each field checked: what another process sends may be anything."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_Kind = TypeVar("_Kind")


def decoded(kind: type[_Kind], data: Any) -> _Kind:
    """Return an instance of a dataclass, or raise TypeError if the data do not fit its fields.

    >>> from retrotape.report._data import Stats
    >>> decoded(Stats, {"norm": 2.0, "rms": 1, "size": 4, "nonfinite": 0})
    Stats(norm=2.0, rms=1.0, size=4, nonfinite=0)
    """
    return _value(kind, data)


def _value(kind: Any, data: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if data is None and type(None) in parts else _value(parts[0], data)
    if origin is tuple:
        return _items(parts, data)
    if origin is dict:
        _check(isinstance(data, dict) and all(isinstance(key, str) for key in data), kind, data)
        return {key: _value(parts[1], item) for key, item in data.items()}
    if is_dataclass(kind):
        return _fields(kind, data)
    if kind is float and type(data) is int:
        return float(data)
    _check(type(data) is kind, kind, data)
    return data


def _items(parts: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    _check(isinstance(data, (list, tuple)), tuple, data)
    if parts[-1] is Ellipsis:
        return tuple(_value(parts[0], item) for item in data)
    _check(len(data) == len(parts), tuple, data)
    return tuple(_value(part, item) for part, item in zip(parts, data, strict=True))


def _fields(kind: Any, data: Any) -> Any:
    hints = _hints(kind)
    _check(isinstance(data, dict) and data.keys() == hints.keys(), kind, data)
    return kind(**{name: _value(hint, data[name]) for name, hint in hints.items()})


@lru_cache(32)
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _check(fits: bool, kind: Any, data: Any) -> None:
    if not fits:
        raise TypeError(f"a report has {type(data).__name__} where {getattr(kind, '__name__', kind)} is expected")
