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

_EQN = re.compile(r"^(?P<outs>.*?)(?: = |^= )(?P<op>\S+?)(?P<attrs>\{.*\})?\((?P<ins>[^()]*)\) @(?P<frame>\d+)$")
_VAR = re.compile(r"%(\d+)(?: : ([a-z0-9_]+)\[(.*?)\])?")
_FRAME = re.compile(r'^@(\d+) = (".*"):(-?\d+) in (".*")$')


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
        return f"Shape({value.dims!r})"
    if isinstance(value, Func):
        return f"Func({value.name!r})"
    if isinstance(value, Proto):
        return f"Proto({value.data!r})"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_show(item)}," for item in value) + ")"
    return repr(value)


def parse(text: str) -> Program:
    """Return the program that `text` shows.

    >>> parse("%0 : float32[2]\\n%1 : float32[2] = Neg{T=float32}(%0) @0\\n@0 = \\"a.py\\":1 in \\"f\\"").eqns[0].op
    'Neg'
    """
    types: dict[int, TensorType] = {}
    producers: dict[int, int] = {}
    eqns: list[Eqn] = []
    frames: list[Frame] = []
    for line in text.splitlines():
        if frame := _FRAME.match(line):
            frames.append(Frame(json.loads(frame[2]), int(frame[3]), json.loads(frame[4])))
        elif line.startswith("%") and " = " not in line:
            _declare(line, LEAF, types, producers)
        elif eqn := _EQN.match(line):
            outs = _declare(eqn["outs"], len(eqns), types, producers)
            ins = tuple(int(found[1]) for found in _VAR.finditer(eqn["ins"]))
            eqns.append(Eqn(eqn["op"], ins, outs, _parse_attrs(eqn["attrs"] or "{}"), int(eqn["frame"])))
        elif line.strip():
            raise MalformedProgramError(f"Cannot read the line {line!r} as part of a program.")
    count = len(types)
    if sorted(types) != list(range(count)):
        raise MalformedProgramError(f"The vars are not numbered from 0 to {count - 1}.")
    program = Program(
        tuple(types[var] for var in range(count)),
        tuple(producers[var] for var in range(count)),
        tuple(eqns),
        tuple(frames),
    )
    check(program)
    return program


def _declare(
    text: str, producer: int, types: dict[int, TensorType], producers: dict[int, int]
) -> tuple[int, ...]:
    declared = []
    for found in _VAR.finditer(text):
        var = int(found[1])
        if var in types:
            raise MalformedProgramError(f"%{var} is defined twice.")
        name = found[2]
        if name is None:
            raise MalformedProgramError(f"%{var} is defined without a type.")
        dtype = DTYPE_NUMBERS[name] if name in DTYPE_NUMBERS else int(name.removeprefix("dtype"))
        types[var] = TensorType(dtype, _parse_shape(found[3]))
        producers[var] = producer
        declared.append(var)
    return tuple(declared)


def _parse_shape(text: str) -> tuple[int | None, ...] | None:
    if text == "...":
        return None
    return tuple(None if dim == "?" else int(dim) for dim in text.split(",")) if text else ()


_TOKEN = re.compile(
    r"""(?P<name>[A-Za-z_][\w]*)=|(?P<wrap>Shape|Func|Proto)\(|(?P<lit>b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*"|"""
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?inf|nan|-?\d[\w.+-]*|True|False|None)|(?P<word>\w+)|(?P<sign>[(){},])|\s+"""
)


def _parse_attrs(text: str) -> tuple[tuple[str, AttrValue], ...]:
    tokens = [token for token in _TOKEN.finditer(text[1:-1]) if not token[0].isspace()]
    attrs = []
    position = 0
    while position < len(tokens):
        name = tokens[position]["name"]
        if name is None:
            raise MalformedProgramError(f"Expected an attribute's name in {text!r}, got {tokens[position][0]!r}.")
        value, position = _parse_value(tokens, position + 1)
        attrs.append((name, value))
        if position < len(tokens) and tokens[position][0] == ",":
            position += 1
    return tuple(attrs)


def _parse_value(tokens: list[re.Match[str]], position: int) -> tuple[AttrValue, int]:
    token = tokens[position]
    if token["wrap"]:
        inner, after = _parse_value(tokens, position + 1)
        kind = {"Shape": Shape, "Func": Func, "Proto": Proto}[token["wrap"]]
        return kind(inner), after + 1  # type: ignore[arg-type]
    if token["sign"] == "(":
        items: list[AttrValue] = []
        position += 1
        while tokens[position]["sign"] != ")":
            if tokens[position]["sign"] == ",":
                position += 1
                continue
            item, position = _parse_value(tokens, position)
            items.append(item)
        return tuple(items), position + 1
    if token["lit"]:
        text = token["lit"]
        special = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
        return special[text] if text in special else literal_eval(text), position + 1
    if token["word"]:
        word = token["word"]
        return DType(DTYPE_NUMBERS[word] if word in DTYPE_NUMBERS else int(word.removeprefix("dtype"))), position + 1
    raise MalformedProgramError(f"Expected a value, got {token[0]!r}.")
