"""Tapes changed at random, with check sums that are right: what a hostile writer can do that damage cannot."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import helpers.seeds
from retrotape.files import store

Json = Any
GONE = object()


class Parts(NamedTuple):
    """What a tape is written from."""

    entries: dict[str, bytes]
    meta: dict[str, Json]
    tensors: list[store.Stored]

    def write(self, path: Path) -> Path:
        store.write(path, self.entries, self.tensors, self.meta)
        return path

    def program(self) -> str:
        return self.entries["program.txt"].decode()

    def with_program(self, text: str) -> Parts:
        return self._replace(entries={**self.entries, "program.txt": text.encode()})

    def functions(self) -> dict[str, Json]:
        return json.loads(self.entries["functions.json"])

    def with_functions(self, functions: Json) -> Parts:
        return self._replace(entries={**self.entries, "functions.json": json.dumps(functions).encode()})


def take_apart(path: Path) -> Parts:
    """Return what a tape was written from."""
    with store.open_tape(path) as tape:
        entries = {name: tape.entry(name) for name in tape.names() if name != "tape.json"}
        tensors = [
            store.Stored(
                name, info.dtype, info.shape, tape.strings(name) if info.dtype == "string" else _data(tape, name)
            )
            for name, info in tape.tensors.items()
        ]
        return Parts(entries, dict(tape.meta), tensors)


def _data(tape: store.Container, name: str) -> bytes:
    return np.array(tape.tensor(name)).tobytes()


# ------------------------------------------------------------------ JSON

WRONG: tuple[Json, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**70, 1.5, 1e308),
    *("", "x", "y", "var", "variable", "\0", "é" * 10, [], {}, [None], [[]], {"a": 1}),
    *({"var": 0}, {"variable": 0}, [0], [-1], [10**9], ["a"], [{}], [[0, 0]], [1.5], [True]),
)


def places(value: Json, way: tuple = ()) -> Iterator[tuple]:
    """Yield the way to everything in a value."""
    yield way
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*way, key))


def changed(value: Json, way: tuple, change: Callable[[Json], Json]) -> Json:
    """Return a copy in which what lies there is another one, or gone."""
    if not way:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    found = changed(copy[way[0]], way[1:], change)
    if found is GONE:
        del copy[way[0]]
    else:
        copy[way[0]] = found
    return copy


def _at(value: Json, way: tuple) -> Json:
    for key in way:
        value = value[key]
    return value


def mutate_json(value: Json, chance: random.Random) -> Json:
    """Return a copy with one change."""
    ways = list(places(value))[1:]
    way, kind = chance.choice(ways), chance.random()
    if kind < 0.5:
        return changed(value, way, lambda _: chance.choice(WRONG))
    if kind < 0.65:
        return changed(value, way, lambda _: GONE)
    if kind < 0.85:
        return changed(value, way, lambda old: _a_little(old, chance))
    other = _at(value, chance.choice(ways))
    return changed(value, way, lambda _: other)


def _a_little(old: Json, chance: random.Random) -> Json:
    if isinstance(old, int) and not isinstance(old, bool):
        return old + chance.choice([-1, 1, 2, 5, 100])
    if isinstance(old, (list, str)) and old:
        return chance.choice([old[:-1], old + old, old[::-1]])
    return chance.choice(WRONG)


# ------------------------------------------------------------------ programs

# fmt: off
OPS = (
    "ReadFile", "WriteFile", "Abort", "EagerPyFunc", "PrintV2", "Neg", "Fill", "Identity", "Sum", "MatMul", "Tile",
    "NoOp", "custom_gradient", "Bitcast", "Cast", "ResourceApplyAdam", "TensorListStack", "TensorListFromTensor",
    "TensorListReserve", "AssignVariableOp", "AssignAddVariableOp", "ResourceGather", "ReadVariableOp", "Conv2D",
    "StridedSlice", "RandomUniformInt", "Switch", "Placeholder", "VarHandleOp", "ResourceScatterAdd", "Cumsum",
    "Einsum", "ConcatV2", "Pack", "Unpack", "Split", "AddN", "IdentityN", "ShapeN", "DynamicStitch", "EmptyTensorList",
    "Where", "Unique", "OneHot", "SegmentSum", "UnsortedSegmentSum", "SparseToDense", "Qr", "Svd", "Cholesky",
    "MatrixDiagV3", "ResizeBilinear", "FFT", "RFFT", "Const", "Range", "LinSpace", "Reshape", "Transpose", "ExpandDims",
    "Squeeze", "GatherV2", "GatherNd", "ScatterNd", "BroadcastTo", "Pad", "MirrorPad", "TopKV2", "StringJoin",
)
ATTRIBUTES = (
    "", "{T=int32}", "{T=string}", "{T=resource}", "{T=variant}", "{T=True}", "{T=()}", "{T=dtype99}",
    "{dtype=float32}", "{N=0}", "{N=-1}", "{N=4611686018427387904}", '{T=Func("f")}', "{T=float32, T=int32}", "{foo=1}",
    "{Tidx=float32}", "{T=float64}", "{T=Shape((-2))}", "{T=Shape(None)}", "{T=Shape(5)}", "{T=Proto(b'')}",
    "{T=Proto(1)}", "{T=b'x'}", "{T=1.5}", "{T=nan}",
)
DTYPES = (
    "float32", "int32", "string", "bool", "int64", "resource", "variant", "float16", "complex64", "dtype99", "qint8",
    "float8_e5m2", "float64",
)
# fmt: on
NUMBERS = (0, 1, 2, 3, 5, 17, 40, 100, 2**31 - 1, 2**31, 2**40, 2**62, 2**63, 2**70)


def mutate_program(text: str, chance: random.Random) -> str:
    """Return a program with one change, or a few letters of it."""
    lines = text.split("\n")
    at, kind = chance.randrange(len(lines)), chance.randrange(9)
    line = lines[at]
    match kind:
        case 0:
            del lines[at]
        case 1:
            lines.insert(chance.randrange(len(lines)), line)
        case 2:
            other = chance.randrange(len(lines))
            lines[at], lines[other] = lines[other], line
        case 3:
            lines[at] = _swap(r"\d+", lambda: str(chance.choice(NUMBERS)), line, chance)
        case 4:
            lines[at] = _swap(r"(?<== )\w+", lambda: chance.choice(OPS), line, chance)
        case 5:
            lines[at] = _swap(r"\{.*\}", lambda: chance.choice(ATTRIBUTES), line, chance)
        case 6:
            lines[at] = _swap("|".join(DTYPES), lambda: chance.choice(DTYPES), line, chance)
        case 7:
            lines[at] = _swap(r"%\d+", lambda: f"%{chance.randrange(60)}", line, chance)
        case 8:
            letters = list(line)
            for _ in range(chance.choice([1, 1, 2, 5])):
                letters[chance.randrange(len(letters))] = chance.choice("%@(){}=,:[]0123456789 abT?.\"\\-'")
            lines[at] = "".join(letters)
    return "\n".join(lines)


def _swap(pattern: str, new: Callable[[], str], line: str, chance: random.Random) -> str:
    found = list(re.finditer(pattern, line))
    if not found:
        return line
    chosen = chance.choice(found)
    return line[: chosen.start()] + new() + line[chosen.end() :]


# ------------------------------------------------------------------ tensors


def mutate_tensors(tensors: list[store.Stored], chance: random.Random) -> list[store.Stored]:
    """Return tensors of which one is gone, another one, of another name, or of other numbers."""
    tensors, at = list(tensors), chance.randrange(len(tensors))
    tensor, other = tensors[at], chance.choice(tensors)
    match chance.randrange(4):
        case 0:
            del tensors[at]
        case 1:
            tensors[at] = other._replace(name=tensor.name)
        case 2:
            names = ("v/999", "v/-1", "w/0", "v/", "v/1.5", "v", "v/00", "v/1" + "0" * 30, "v/+1", "x/v/1")
            tensors[at] = tensor._replace(name=chance.choice(names))
        case 3 if tensor.dtype == "string":
            tensors[at] = tensor._replace(data=[b"\xff" * 9] * len(tensor.data))
        case 3 if tensor.dtype != "bool":
            tensors[at] = tensor._replace(data=chance.randbytes(len(tensor.data)))
    return tensors


def mutate(parts: Parts, seed: int) -> tuple[str, Parts]:
    """Return what was changed, and the tape with the change; the same for the same seed."""
    chance = random.Random(seed)
    kind = chance.random()
    if kind < 0.35:
        return "tape.json", parts._replace(meta=mutate_json(parts.meta, chance))
    if kind < 0.75:
        return "program.txt", parts.with_program(mutate_program(parts.program(), chance))
    if kind < 0.92:
        functions = parts.functions()
        if chance.random() < 0.5:
            return "functions.json", parts.with_functions(mutate_json(functions, chance))
        key = chance.choice(sorted(functions))
        functions[key]["program"] = mutate_program(functions[key]["program"], chance)
        return "functions.json", parts.with_functions(functions)
    return "tensors", parts._replace(tensors=mutate_tensors(parts.tensors, chance))


def seeds() -> list[int]:
    """Return which mutations to try; RETROTAPE_MUTATIONS="first,last" chooses others."""
    if "RETROTAPE_MUTATIONS" not in os.environ:
        return helpers.seeds.seeds(400, 1600)
    first, last = map(int, os.environ["RETROTAPE_MUTATIONS"].split(","))
    return [*range(first, last)]
