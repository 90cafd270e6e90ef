"""The ways back through custom gradients, as a file has them: functions that are programs, and where each is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retrotape.ir._fields import Malformed, items, numbers, read_program
from retrotape.ir._program import Eqn, Program

Json = Any
CUSTOM = "custom_gradient"  # not an op of TensorFlow: an equation whose way back is a function
_DEEPEST = 16


class WayBack(NamedTuple):
    """Which function goes back through an equation, and which vars there it is about."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    captures: tuple[int, ...]


class FunctionParts(NamedTuple):
    """A backward function: its program, the leaves for what flows in and what it looks at, and what comes out."""

    program: Program
    grads: tuple[int, ...]
    captured: tuple[int, ...]
    results: tuple[tuple[int, ...], ...]
    ways_back: dict[int, WayBack]


class Functions:
    """The functions of a file, each checked once.

    Args:
      written: What `functions.json` says.
      check: Called with each program that is found.
    """

    def __init__(self, written: Json, check: Callable[[Program], None]) -> None:
        if not isinstance(written, dict):
            raise Malformed("functions.json is not an object")
        self._written: Mapping[str, Json] = written
        self._check = check
        self._read: dict[str, FunctionParts] = {}
        self._open: list[str] = []

    def __iter__(self) -> Any:
        return iter(self._written)

    def __getitem__(self, key: Json) -> FunctionParts:
        """Return a function, or raise where it makes no sense."""
        if not isinstance(key, str) or key not in self._written:
            raise Malformed(f"there is no function {key!r}")
        if key in self._open:
            raise Malformed(f"function {key} contains itself")
        if len(self._open) > _DEEPEST:
            raise Malformed(f"functions are nested more than {_DEEPEST} deep")
        if key not in self._read:
            self._open.append(key)
            self._read[key] = self._parts(self._written[key])
            self._open.pop()
        return self._read[key]

    def ways_back(self, written: Json, program: Program, whole: bool = False) -> dict[int, WayBack]:
        """Return the ways back through equations of a program, by equation; with `whole`, none may be missing."""
        found: dict[int, WayBack] = {}
        for row in items(written, dict, "a way back"):
            (index,) = numbers([row.get("equation")], len(program.eqns), "an equation")
            function = self[row.get("function")]
            inputs, outputs, captures = (
                numbers(row.get(name), len(program.types), name) for name in ("inputs", "outputs", "captures")
            )
            way = WayBack(row["function"], inputs, outputs, captures)
            if index in found or not _fits(function, program, program.eqns[index], way):
                raise Malformed(f"the way back through equation {index} does not fit it")
            found[index] = way
        for index, eqn in enumerate(program.eqns):
            if eqn.op == CUSTOM and not _has_name(eqn):
                raise Malformed(f"equation {index} is a custom gradient without a name")
            if eqn.op == CUSTOM and whole and index not in found:
                raise Malformed(f"equation {index} is a custom gradient without a way back")
        return found

    def _parts(self, written: Json) -> FunctionParts:
        if not isinstance(written, dict) or not isinstance(written.get("program"), str):
            raise Malformed("a function has no program")
        program = read_program(written["program"])
        self._check(program)
        grads, captured = (numbers(written.get(name), len(program.types), name) for name in ("grads", "captured"))
        if sorted([*grads, *captured]) != program.leaves():
            raise Malformed("the leaves of a function are not its gradients and what it looks at")
        results = tuple(
            numbers(result, len(program.types), "results") for result in items(written.get("results"), list, "results")
        )
        if any(len(result) not in (0, 1, 3) for result in results):
            raise Malformed("a result of a function is neither one tensor nor three")
        return FunctionParts(program, grads, captured, results, self.ways_back(written.get("backwards"), program))


def _has_name(eqn: Eqn) -> bool:
    if len(eqn.attrs) != 1 or eqn.attrs[0][0] != "name" or not isinstance(eqn.attrs[0][1], bytes):
        return False
    try:
        eqn.attrs[0][1].decode()
    except UnicodeDecodeError:
        return False
    return True


def _fits(function: FunctionParts, program: Program, eqn: Eqn, way: WayBack) -> bool:
    """Say whether a function goes back through an equation: the types of what it takes and gives are those there."""
    count = len(eqn.inputs) - len(eqn.outputs)  # then follow what the outputs were made from
    if eqn.op != CUSTOM or way.inputs != eqn.inputs[:count] or way.outputs != eqn.outputs:
        return False
    inside, outside = function.program.types, program.types
    pairs = ((function.grads, way.outputs), (function.captured, way.captures))
    return len(function.results) <= count and all(
        [inside[var] for var in ours] == [outside[var] for var in theirs] for ours, theirs in pairs
    )
