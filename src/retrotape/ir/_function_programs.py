"""Backward functions of custom gradients in a file: functions as programs, and where each is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from retrotape._types import Json
from retrotape.ir._facts import BackwardFunction, Facts
from retrotape.ir._fields import Malformed, items, numbers, read_program
from retrotape.ir._program import CUSTOM, Eqn, FunctionProgram, Program

_DEEPEST = 16


class Functions:
    """The functions of a file, each checked once.

    Args:
      written: The value of `functions.json`.
      check: Called with each program; returns the program to run, or raises.
    """

    def __init__(self, written: Json, check: Callable[[Program], Program]) -> None:
        if not isinstance(written, dict):
            raise Malformed("functions.json is not an object")
        self._written: Mapping[str, Json] = written
        self._check = check
        self._read: dict[str, FunctionProgram] = {}
        self._open: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._written)

    def __getitem__(self, key: Json) -> FunctionProgram:
        """Return a function, or raise if it is invalid."""
        if not isinstance(key, str) or key not in self._written:
            raise Malformed(f"there is no function {key!r}")
        if key in self._open:
            raise Malformed(f"function {key} contains itself")
        if len(self._open) > _DEEPEST:
            raise Malformed(f"functions are nested more than {_DEEPEST} deep")
        if key not in self._read:
            self._open.append(key)
            self._read[key] = self._parse(self._written[key])
            self._open.pop()
        return self._read[key]

    def backward_functions(self, written: Json, program: Program, whole: bool = False) -> dict[int, BackwardFunction]:
        """Return the backward functions of equations of a program, by equation; with `whole`, none may be missing."""
        found: dict[int, BackwardFunction] = {}
        for row in items(written, dict, "a backward function"):
            (index,) = numbers([row.get("equation")], len(program.eqns), "equation")
            function = self[row.get("function")]
            inputs, outputs, captures = (
                numbers(row.get(name), len(program.types), name) for name in ("inputs", "outputs", "captures")
            )
            backward = BackwardFunction(function, inputs, outputs, captures)
            if index in found or not _fits(program, program.eqns[index], backward):
                raise Malformed(f"the backward function of equation {index} does not fit it")
            found[index] = backward
        for index, eqn in enumerate(program.eqns):
            if eqn.op == CUSTOM and not _has_name(eqn):
                raise Malformed(f"equation {index} is a custom gradient without a name")
            if eqn.op == CUSTOM and whole and index not in found:
                raise Malformed(f"equation {index} is a custom gradient without a backward function")
        return found

    def _parse(self, written: Json) -> FunctionProgram:
        if not isinstance(written, dict) or not isinstance(written.get("program"), str):
            raise Malformed("a function has no program")
        program = self._check(read_program(written["program"]))
        grads, captured = (numbers(written.get(name), len(program.types), name) for name in ("cotangents", "captures"))
        if sorted([*grads, *captured]) != program.leaves():
            raise Malformed("the leaves of a function are not its cotangents and captures")
        results = tuple(
            numbers(result, len(program.types), "results") for result in items(written.get("results"), list, "results")
        )
        if any(len(result) not in (0, 1, 3) for result in results):
            raise Malformed("a result of a function is neither one tensor nor three")
        inner = self.backward_functions(written.get("backward_functions"), program)
        return FunctionProgram(replace(program, facts=Facts(backward_functions=inner)), grads, captured, results)


def _has_name(eqn: Eqn) -> bool:
    if len(eqn.attrs) != 1 or eqn.attrs[0][0] != "name" or not isinstance(eqn.attrs[0][1], bytes):
        return False
    try:
        eqn.attrs[0][1].decode()
    except UnicodeDecodeError:
        return False
    return True


def _fits(program: Program, eqn: Eqn, backward: BackwardFunction) -> bool:
    """Return whether a backward function fits an equation: the types of its arguments and results match."""
    count = len(eqn.inputs) - len(eqn.outputs)  # the remaining inputs are the values of the outputs
    if eqn.op != CUSTOM or backward.inputs != eqn.inputs[:count] or backward.outputs != eqn.outputs:
        return False
    function = backward.function
    inside, outside = function.program.types, program.types
    pairs = ((function.cotangents, backward.outputs), (function.captures, backward.captures))
    return len(function.results) <= count and all(
        [inside[var] for var in ours] == [outside[var] for var in theirs] for ours, theirs in pairs
    )
