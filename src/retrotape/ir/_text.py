"""Programs as text, and back: `parse(render(p)) == p`. The text is what people paste into reports."""

from __future__ import annotations

import json
import re
from ast import literal_eval
from collections.abc import Iterator

from retrotape.errors import MalformedProgramError
from retrotape.ir._check import check
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
)

_VAR = r"%(\d+)"
_TYPED = rf"{_VAR} : ([a-z]\w*)\[([\d,?]*|\.\.\.)\]"
_LEAF_LINE = re.compile(_TYPED)
_EQN_LINE = re.compile(rf"((?:{_TYPED}, )*(?:{_TYPED} )?)= (\S+?)(\{{.*\}})?\(((?:{_VAR}, )*(?:{_VAR})?)\) @(\d+)")
_FRAME_LINE = re.compile(r'@(\d+) = (".*"):(-?\d+) in (".*")')


def render(program: Program) -> str:
    """Return the program as text, one line for each leaf, equation and frame."""
    return "\n".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    for var in program.leaves():
        yield f"%{var} : {program.types[var]}"
    for eqn in program.eqns:
        outs = ", ".join(f"%{var} : {program.types[var]}" for var in eqn.outputs)
        ins = ", ".join(f"%{var}" for var in eqn.inputs)
        attrs = "{" + ", ".join(f"{name}={_show(value)}" for name, value in eqn.attrs) + "}" if eqn.attrs else ""
        yield f"{outs} = {eqn.op}{attrs}({ins}) @{eqn.frame}".lstrip()
    for number, frame in enumerate(program.frames):
        yield f"@{number} = {json.dumps(frame.file)}:{frame.line} in {json.dumps(frame.function)}"


def _show(value: AttrValue) -> str:
    if isinstance(value, DType):
        return DTYPE_NAMES.get(value.number, f"dtype{value.number}")
    if isinstance(value, Shape):
        return f"Shape({'None' if value.dims is None else _show(value.dims)})"
    if isinstance(value, Func):
        return f"Func({json.dumps(value.name)})"
    if isinstance(value, Proto):
        return f"Proto({value.data!r})"
    if isinstance(value, tuple):
        return "(" + ", ".join(_show(item) for item in value) + ")"  # type: ignore[arg-type]
    return repr(value)


def parse(text: str) -> Program:
    r"""Return the program that `text` shows.

    >>> parse("%0 : float32[2]\n%1 : float32[2] = Neg{T=float32}(%0) @0\n@0 = \"a.py\":1 in \"f\"").eqns[0].op
    'Neg'
    """
    types: dict[int, TensorType] = {}
    producers: dict[int, int] = {}
    eqns: list[Eqn] = []
    frames: list[Frame] = []
    for line in filter(str.strip, text.split("\n")):
        try:
            if found := _FRAME_LINE.fullmatch(line):
                frames.append(Frame(json.loads(found[2]), int(found[3]), json.loads(found[4])))
            elif _LEAF_LINE.fullmatch(line):
                _declare(line, LEAF, types, producers)
            elif found := _EQN_LINE.fullmatch(line):
                outs, op, attrs, ins, frame = found[1], found[8], found[9], found[10], found[13]
                declared = _declare(outs, len(eqns), types, producers)
                used = tuple(int(var) for var in re.findall(_VAR, ins))
                eqns.append(Eqn(op, used, declared, _Attrs(attrs).read() if attrs else (), int(frame)))
            else:
                raise ValueError("it is neither a leaf, nor an equation, nor a frame")
        except (ValueError, SyntaxError, IndexError) as error:
            raise MalformedProgramError(f"Cannot read the line {line!r}: {error}.") from error
    if sorted(types) != list(range(len(types))):
        raise MalformedProgramError(f"The vars are not numbered from 0 to {len(types) - 1}.")
    order = range(len(types))
    program = Program(
        tuple(types[var] for var in order), tuple(producers[var] for var in order), tuple(eqns), tuple(frames)
    )
    check(program)
    return program


def _declare(text: str, producer: int, types: dict[int, TensorType], producers: dict[int, int]) -> tuple[int, ...]:
    declared = []
    for number, name, shape in re.findall(_TYPED, text):
        var = int(number)
        if var in types:
            raise ValueError(f"%{var} is defined twice")
        types[var] = TensorType(_dtype(name), _shape(shape))
        producers[var] = producer
        declared.append(var)
    return tuple(declared)


def _dtype(name: str) -> int:
    if name in DTYPE_NUMBERS:
        return DTYPE_NUMBERS[name]
    if re.fullmatch(r"dtype\d+", name):
        return int(name[5:])
    raise ValueError(f"{name} is no dtype")


def _shape(text: str) -> tuple[int | None, ...] | None:
    if text == "...":
        return None
    return tuple(None if dim == "?" else int(dim) for dim in text.split(",")) if text else ()


_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[A-Za-z_]\w*)=|(?P<wrap>Shape|Func|Proto)(?=\()|(?P<bytes>b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*")"""
    r"""|(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?(?:inf|nan|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?!\w))"""
    r"""|(?P<word>[A-Za-z]\w*)|(?P<sign>[(){},]))"""
)
_WORDS: dict[str, AttrValue | None] = {"True": True, "False": False, "None": None}


class _Attrs:
    """Reads `{name=value, ...}`."""

    def __init__(self, text: str) -> None:
        self._tokens: list[re.Match[str]] = []
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                raise ValueError(f"{text[position : position + 10]!r} is no part of an attribute")
            self._tokens.append(token)
            position = token.end()
        self._next = 0

    def read(self) -> tuple[Attr, ...]:
        """Return the pairs."""
        self._take("{")
        pairs: list[Attr] = []
        while not pairs or self._more("}"):
            name = self._tokens[self._next]["name"]
            if name is None:
                raise ValueError(f"expected an attribute's name, got {self._tokens[self._next][0]!r}")
            self._next += 1
            pairs.append((name, self._value()))  # type: ignore[arg-type]
        if self._next != len(self._tokens):
            raise ValueError("something follows the attributes")
        return tuple(pairs)

    def _take(self, sign: str) -> None:
        if self._tokens[self._next]["sign"] != sign:
            raise ValueError(f"expected {sign!r}, got {self._tokens[self._next][0]!r}")
        self._next += 1

    def _more(self, end: str) -> bool:
        """Step over a comma, or over the end of the list."""
        more = self._tokens[self._next]["sign"] != end
        self._take("," if more else end)
        return more

    def _value(self) -> AttrValue | None:
        token = self._tokens[self._next]
        if token["sign"] == "(":
            return self._tuple()
        self._next += 1
        if token["wrap"]:
            self._take("(")
            inner = self._value()
            self._take(")")
            return {"Shape": Shape, "Func": Func, "Proto": Proto}[token["wrap"]](inner)
        if token["bytes"]:
            return literal_eval(token["bytes"])
        if token["text"]:
            return json.loads(token["text"])
        if token["number"]:
            digits = token["number"]
            return int(digits) if re.fullmatch(r"-?\d+", digits) else float(digits)
        if token["word"]:
            return _WORDS[token["word"]] if token["word"] in _WORDS else DType(_dtype(token["word"]))
        raise ValueError(f"expected a value, got {token[0]!r}")

    def _tuple(self) -> AttrValue:
        self._take("(")
        if self._tokens[self._next]["sign"] == ")":
            self._next += 1
            return ()
        items = [self._value()]
        while self._more(")"):
            items.append(self._value())
        return tuple(items)  # type: ignore[arg-type]
