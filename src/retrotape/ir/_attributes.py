"""The attributes of an equation as text, and parsed again: `{T=float32, shape=Shape((2, 3))}`.

Every regular expression here runs in linear time on any input: no two parts of one can match the same character.
"""

from __future__ import annotations

import json
import re
from ast import literal_eval
from typing import Any, NamedTuple

from retrotape.ir._program import DTYPE_NAMES, DTYPE_NUMBERS, Attr, AttrValue, DType, Func, Proto, Shape

_DEEPEST = 32  # lists in lists; TensorFlow has none
_LONGEST = 40  # digits of a number; TensorFlow takes 19
_TOKEN = re.compile(
    r"""[ ]*(?:(?P<name>[A-Za-z_]\w*)=|(?P<wrap>Shape|Func|Proto)(?=\()|(?P<bytes>b['"])|(?P<text>")"""
    r"""|(?P<number>-?(?:inf|nan|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?!\w))|(?P<word>[A-Za-z]\w*)|(?P<sign>[(){},]))""",
    re.ASCII,
)
# What `repr` writes for bytes between its quotation marks. A piece at a time: the engine keeps state for each round.
_ESCAPE = r"""\\(?:x[0-9a-fA-F]{2}|[\\'"nrt])"""
_BYTES = {
    "'": re.compile(rf"(?:[ -&(-\[\]-~]|{_ESCAPE}){{1,4096}}"),
    '"': re.compile(rf"(?:[ !#-\[\]-~]|{_ESCAPE}){{1,4096}}"),
}
_JSON = json.JSONDecoder()
_INTEGER = re.compile(r"-?[0-9]+")
_WORDS = {"True": True, "False": False}
_WRAPS: dict[str, Any] = {"Shape": Shape, "Func": Func, "Proto": Proto}
_TAKES = {"Shape": "a list of whole numbers, or None", "Func": "a name", "Proto": "bytes"}


def render_attrs(attrs: tuple[Attr, ...]) -> str:
    """Return attributes as text; nothing where there are none.

    >>> render_attrs((("T", DType(1)), ("N", 2)))
    '{T=float32, N=2}'
    """
    return "{" + ", ".join(f"{name}={_render(value)}" for name, value in attrs) + "}" if attrs else ""


def _render(value: AttrValue) -> str:
    if isinstance(value, DType):
        return DTYPE_NAMES.get(value.number, f"dtype{value.number}")
    if isinstance(value, Shape):
        return f"Shape({'None' if value.dims is None else _render(value.dims)})"
    if isinstance(value, Func):
        return f"Func({json.dumps(value.name)})"
    if isinstance(value, Proto):
        return f"Proto({value.data!r})"
    if isinstance(value, tuple):
        return "(" + ", ".join(_render(item) for item in value) + ")"  # type: ignore[arg-type]
    return repr(value)


def parse_attrs(text: str, position: int) -> tuple[tuple[Attr, ...], int]:
    """Return the attributes that begin at a position of `text`, and where they end.

    Raises:
      ValueError: If there are no valid attributes.

    >>> parse_attrs("Op{N=2}(%0)", 2)
    ((('N', 2),), 7)
    """
    reader = _Reader(text, position)
    return reader.read(), reader.end


def dtype_number(name: str) -> int:
    """Return the number of a dtype, or raise ValueError."""
    if name in DTYPE_NUMBERS:
        return DTYPE_NUMBERS[name]
    if name.startswith("dtype") and name[5:].isdecimal():
        return whole_number(name[5:])
    raise ValueError(f"{name[:40]} is no dtype")


def whole_number(digits: str) -> int:
    """Return a number, or raise for too many digits, which Python parses slowly or refuses with its own message."""
    if len(digits) > _LONGEST:
        raise ValueError(f"a number has {len(digits)} digits, more than {_LONGEST}")
    return int(digits)


class _Token(NamedTuple):
    kind: str
    text: str
    end: int


def _token(text: str, position: int) -> _Token:
    found = _TOKEN.match(text, position)
    if found is None:
        rest = text[position : position + 10]
        raise ValueError(f"{rest!r} is no part of an attribute" if rest else "an attribute has no end")
    kind, end = str(found.lastgroup), found.end()
    if kind == "text":
        value, end = _JSON.raw_decode(text, end - 1)
        return _Token(kind, value, end)
    if kind == "bytes":
        mark = text[end - 1]
        while piece := _BYTES[mark].match(text, end):
            end = piece.end()
        if not text.startswith(mark, end):
            raise ValueError(f"{text[end : end + 10]!r} is no part of bytes")
        return _Token(kind, text[found.start(kind) : end + 1], end + 1)
    return _Token(kind, found[kind], end)


class _Reader:
    """Reads `{name=value, ...}`. `end` is where the last token that was consumed ends."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self.end = position
        self._token = _token(text, position)

    def _step(self) -> None:
        self.end = self._token.end
        self._token = _token(self._text, self.end)

    def read(self) -> tuple[Attr, ...]:
        """Return the pairs."""
        self._take("{")
        pairs: list[Attr] = []
        while not pairs or self._more("}"):
            kind, name, _ = self._token
            if kind != "name":
                raise ValueError(f"expected an attribute's name, got {self._got()}")
            self._step()
            pairs.append((name, self._value(0)))
        return tuple(pairs)

    def _got(self) -> str:
        return repr(self._token.text[:40])

    def _at(self, sign: str) -> bool:
        return self._token.kind == "sign" and self._token.text == sign

    def _take(self, sign: str) -> None:
        if not self._at(sign):
            raise ValueError(f"expected {sign!r}, got {self._got()}")
        if sign == "}":
            self.end = self._token.end  # what follows belongs to the equation
        else:
            self._step()

    def _more(self, end: str) -> bool:
        """Step over a comma, or over the end of the list."""
        more = not self._at(end)
        self._take("," if more else end)
        return more

    def _value(self, depth: int) -> AttrValue:
        if depth > _DEEPEST:
            raise ValueError(f"an attribute is nested more than {_DEEPEST} deep")
        if self._at("("):
            return self._tuple(depth)
        kind, text, _ = self._token
        if kind in ("sign", "name", "text"):
            raise ValueError(f"expected a value, got {self._got()}")
        self._step()
        if kind == "wrap":
            self._take("(")
            inner = self._inner(text, depth)
            self._take(")")
            return _WRAPS[text](inner)
        return _simple(kind, text)

    def _inner(self, wrap: str, depth: int) -> Any:
        """Return the argument of a shape, a function or a proto; each takes one kind."""
        kind, text, _ = self._token
        if wrap == "Func" and kind == "text":
            self._step()
            return text
        if wrap == "Shape" and (kind, text) == ("word", "None"):
            self._step()
            return None
        inner = self._value(depth + 1)
        sizes = type(inner) is tuple and all(type(size) is int for size in inner)
        if (wrap == "Shape" and sizes) or (wrap == "Proto" and isinstance(inner, bytes)):
            return inner
        raise ValueError(f"{wrap} takes {_TAKES[wrap]}")

    def _tuple(self, depth: int) -> AttrValue:
        self._take("(")
        if self._at(")"):
            self._step()
            return ()
        items = [self._value(depth + 1)]
        while self._more(")"):
            items.append(self._value(depth + 1))
        return tuple(items)


def _simple(kind: str, text: str) -> AttrValue:
    if kind == "bytes":
        return literal_eval(text)
    if kind == "number":
        return whole_number(text) if _INTEGER.fullmatch(text) else float(text)
    return _WORDS[text] if text in _WORDS else DType(dtype_number(text))
