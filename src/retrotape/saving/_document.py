"""A portable recording as a document: text and JSON that mean it, and nothing of TensorFlow in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from retrotape.ir import Eqn, Frame, Program
from retrotape.record import CUSTOM, Backward, default_attrs
from retrotape.saving._functions import SavedFunction
from retrotape.saving._ops import OpCheck

Json = Any


class Document(NamedTuple):
    """What is written beside the tensors."""

    program: str
    functions: dict[str, Json]  # by the hash of what they are
    fields: dict[str, Json]


class Malformed(Exception):
    """A field is not what it should be."""


_INSIDE = (Frame("<custom gradient>", 0, "backward"),)


def backwards_to_json(backwards: Mapping[int, Backward], functions: dict[str, Json]) -> list[Json]:
    """Return ways back as JSON, and put what they do into `functions`, each once."""
    return [
        {
            "equation": index,
            "function": _function_to_json(back.function, functions),
            "inputs": list(back.inputs),
            "outputs": list(back.outputs),
            "captures": list(back.captures),
        }
        for index, back in sorted(backwards.items())
    ]


def _function_to_json(function: SavedFunction, functions: dict[str, Json]) -> str:
    program = function.program
    eqns = tuple(
        without_defaults(eqn)._replace(frame=0) for eqn in program.eqns
    )  # where it stands is not part of what it does
    written = {
        "program": str(Program(program.types, program.producers, eqns, _INSIDE)),
        "grads": list(function.grads),
        "captured": list(function.captured),
        "results": [list(result) for result in function.results],
        "backwards": backwards_to_json(function.backwards, functions),
    }
    key = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:16]
    functions[key] = written
    return key


class FunctionReader:
    """Makes functions of JSON, checking everything that it says.

    Args:
      functions: As `backwards_to_json` made them.
      guard: Checks each program that is found, and its ops when they run.
    """

    def __init__(self, functions: Mapping[str, Json], guard: OpCheck) -> None:
        self._written = functions
        self._guard = guard
        self._made: dict[str, SavedFunction] = {}
        self._open: list[str] = []

    def backwards(self, written: Json, program: Program) -> dict[int, Backward]:
        """Return the ways back through equations of `program`."""
        found = {}
        for item in items(written, dict, "a way back"):
            (index,) = numbers([item.get("equation")], len(program.eqns), "an equation")
            eqn = program.eqns[index]
            function = self._function(item.get("function"))
            inputs, outputs, captures = (
                numbers(item.get(name), len(program.types), name) for name in ("inputs", "outputs", "captures")
            )
            if index in found or not _fits(function, program, eqn, inputs, outputs, captures):
                raise Malformed(f"the way back through equation {index} does not fit it")
            found[index] = Backward(function, inputs, outputs, captures)
        return found

    def _function(self, key: Json) -> SavedFunction:
        if not isinstance(key, str) or key not in self._written:
            raise Malformed(f"there is no function {key!r}")
        if key in self._open:
            raise Malformed(f"function {key} contains itself")
        if len(self._open) > 16:
            raise Malformed("functions are nested more than 16 deep")
        if key not in self._made:
            self._open.append(key)
            self._made[key] = self._make(self._written[key])
            self._open.pop()
        return self._made[key]

    def _make(self, written: Json) -> SavedFunction:
        if not isinstance(written, dict) or not isinstance(written.get("program"), str):
            raise Malformed("a function has no program")
        program = Program.parse(written["program"])
        self._guard.check(program)
        program = replace(program, eqns=tuple(map(with_defaults, program.eqns)))
        leaves = set(program.leaves())
        grads, captured = (numbers(written.get(name), len(program.types), name) for name in ("grads", "captured"))
        if sorted([*grads, *captured]) != sorted(leaves):
            raise Malformed("the leaves of a function are not its gradients and what it looks at")
        results = tuple(
            numbers(result, len(program.types), "results") for result in items(written.get("results"), list, "results")
        )
        if any(len(result) not in (0, 1, 3) for result in results):
            raise Malformed("a result of a function is neither one tensor nor three")
        backwards = self.backwards(written.get("backwards"), program)
        return SavedFunction(program, grads, captured, results, backwards, self._guard)


def _fits(
    function: SavedFunction,
    program: Program,
    eqn: Eqn,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    captures: tuple[int, ...],
) -> bool:
    """Say whether a function goes back through an equation: the types of what it takes and gives are those there."""
    count = len(eqn.inputs) - len(eqn.outputs)  # then follow what the outputs were made from
    if eqn.op != CUSTOM or inputs != eqn.inputs[:count] or outputs != eqn.outputs or len(function.results) > count:
        return False
    inside, outside = function.program.types, program.types
    pairs = ((function.grads, outputs), (function.captured, captures))
    return all([inside[var] for var in ours] == [outside[var] for var in theirs] for ours, theirs in pairs)


def numbers(written: Json, bound: int, what: str, lowest: int = 0) -> tuple[int, ...]:
    """Return a list of whole numbers below `bound`, or raise."""
    found = items(written, int, what)
    for number in found:
        if isinstance(number, bool) or not lowest <= number < bound:
            raise Malformed(f"{what} says {number!r}, which is not from {lowest} to {bound - 1}")
    return tuple(found)


def items(written: Json, kind: type, what: str) -> list[Any]:
    """Return a list of which every item is of a kind, or raise."""
    if not isinstance(written, list) or not all(isinstance(item, kind) for item in written):
        raise Malformed(f"{what} is not a list of {kind.__name__}")
    return written


def with_defaults(eqn: Eqn) -> Eqn:
    """Say what a file leaves out because it goes without saying."""
    if eqn.op == CUSTOM:
        return eqn
    said = dict(default_attrs(eqn.op))
    said.update(eqn.attrs)
    return eqn._replace(attrs=tuple(sorted(said.items())))


def without_defaults(eqn: Eqn) -> Eqn:
    """Leave out attributes that say what is so anyway: an older TensorFlow may not know them."""
    usual = () if eqn.op == CUSTOM else default_attrs(eqn.op)
    return eqn._replace(attrs=tuple(pair for pair in eqn.attrs if pair not in usual))
