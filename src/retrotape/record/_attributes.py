"""Convert op attributes between TensorFlow's many representations and a single canonical one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from retrotape.ir import COLLECTIVES, OWN_OPS, Attr, AttrValue, DType, Eqn, Func, Proto, Shape
from retrotape.tf import core
from retrotape.tf.core import TensorProto, tf

LARGEST = 8192  # cache entries
_cache: dict[Any, tuple[Attr, ...]] = {}


def canonical(op: str, attrs: Any) -> tuple[Attr, ...]:
    """Return `attrs` as sorted pairs of plain data.

    TensorFlow repeats names, uses None for the default, and passes dtypes as numbers or objects, strings as str or
    bytes, and shapes in three forms. The op definition determines the type of each attribute.
    """
    try:
        return _cache[op, attrs]
    except KeyError:
        if len(_cache) >= LARGEST:  # values include seeds and function names, which are unbounded
            _cache.clear()
        result = _cache[op, attrs] = _canonical(op, attrs)
        return result
    except TypeError:  # unhashable: one of the values is a list
        return _canonical(op, attrs)


def _canonical(op: str, attrs: Any) -> tuple[Attr, ...]:
    if op in COLLECTIVES:
        return attrs
    definition = core.op_def(op)
    if definition is None or not attrs:  # attributes of a function call only say how to run it
        return ()
    defined = {attr.name: attr for attr in definition.attr}
    found: dict[str, AttrValue] = {}
    for name, value in zip(attrs[::2], attrs[1::2], strict=True):
        name = name if isinstance(name, str) else name.decode()
        if name in defined and name not in found:
            attr = defined[name]
            if value is not None:
                found[name] = _plain(attr.type, value)
            elif attr.HasField("default_value"):
                found[name] = _default(attr.type, attr.default_value)
    return tuple(sorted(found.items()))


@lru_cache(4096)
def default_attrs(op: str) -> tuple[Attr, ...]:
    """Return the default attributes of an op, as sorted pairs of plain data."""
    definition = core.op_def(op)
    given = [attr for attr in definition.attr if attr.HasField("default_value")] if definition is not None else []
    return tuple(sorted((attr.name, _default(attr.type, attr.default_value)) for attr in given))


_FIELDS = {
    "type": "type",
    "int": "i",
    "bool": "b",
    "float": "f",
    "string": "s",
    "shape": "shape",
    "func": "func",
}


def _default(kind: str, proto: Any) -> AttrValue:
    if kind.startswith("list("):
        return tuple(_plain(kind[5:-1], item) for item in getattr(proto.list, _FIELDS[kind[5:-1]]))
    return _plain(kind, getattr(proto, _FIELDS[kind]))


def _plain(kind: str, value: Any) -> AttrValue:
    if kind.startswith("list("):
        return tuple(_plain(kind[5:-1], item) for item in value)
    match kind:
        case "type":
            return DType(value if isinstance(value, int) else tf.as_dtype(value).base_dtype.as_datatype_enum)
        case "int":
            return int(value)
        case "bool":
            return bool(value)
        case "float":
            return float(value)
        case "string":
            return value if isinstance(value, bytes) else str(value).encode()
        case "shape":
            shape = tf.TensorShape(value)
            return Shape(None if shape.rank is None else tuple(-1 if d is None else d for d in shape.as_list()))
        case "func":
            name = getattr(value, "name", value)
            return Func(name.decode() if isinstance(name, bytes) else name)
        case "tensor":
            return Proto(value.SerializeToString())
    raise ValueError(f"Attribute of unknown kind {kind!r}: {value!r}.")


def for_execution(attrs: tuple[Attr, ...]) -> tuple[Any, ...]:
    """Return the attributes in the form that TensorFlow takes to execute an op by name."""
    return tuple(part for name, value in attrs for part in (name, _executable(value)))


def _executable(value: AttrValue) -> Any:
    match value:
        case DType(number):
            return number
        case Shape(dims):
            return None if dims is None else [None if d < 0 else d for d in dims]
        case Func(name):
            return name
        case Proto(data):
            return TensorProto.FromString(data)
        case tuple():
            return [_executable(item) for item in value]  # type: ignore[arg-type]
    return value


def for_rule(value: AttrValue) -> Any:
    """Return one attribute as `tf.Operation.get_attr` would, as gradient functions expect."""
    match value:
        case DType(number):
            return tf.as_dtype(number)
        case Shape():
            return tf.TensorShape(_executable(value)).as_proto()
        case tuple() if not isinstance(value, (Func, Proto)):
            return [for_rule(item) for item in value]  # type: ignore[arg-type]
    return _executable(value)


def with_defaults(eqn: Eqn) -> Eqn:
    """Add the default attributes, which files omit."""
    if eqn.op in OWN_OPS:
        return eqn
    attrs = dict(default_attrs(eqn.op))
    attrs.update(eqn.attrs)
    return eqn._replace(attrs=tuple(sorted(attrs.items())))


def without_defaults(eqn: Eqn) -> Eqn:
    """Remove attributes that have their default value: an older TensorFlow may not know them."""
    defaults = () if eqn.op in OWN_OPS else default_attrs(eqn.op)
    return eqn._replace(attrs=tuple(pair for pair in eqn.attrs if pair not in defaults))
