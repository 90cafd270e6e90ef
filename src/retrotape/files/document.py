"""A portable recording as a document: text and JSON that mean it, and nothing of TensorFlow in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from retrotape.files.checks._guard import Guard
from retrotape.files.checks._ops import OpCheck
from retrotape.ir import Frame, Functions, Program, WayBack
from retrotape.record import Backward, with_defaults, without_defaults
from retrotape.transform import SavedFunction

Json = Any


class Document(NamedTuple):
    """What is written beside the tensors."""

    program: str
    functions: dict[str, Json]  # by the hash of what they are
    fields: dict[str, Json]


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
      check: Checks each program that is found.
      guard: Runs the ops of what comes from a file.
    """

    def __init__(self, functions: Json, check: OpCheck, guard: Guard) -> None:
        self._functions = Functions(functions, check.check)
        self._guard = guard
        self._made: dict[str, SavedFunction] = {}

    def backwards(self, written: Json, program: Program) -> dict[int, Backward]:
        """Return the ways back through equations of `program`, which has one for every custom gradient."""
        return self._backwards(self._functions.ways_back(written, program, whole=True))

    def _backwards(self, ways: Mapping[int, WayBack]) -> dict[int, Backward]:
        return {
            index: Backward(self._function(way.function), way.inputs, way.outputs, way.captures)
            for index, way in ways.items()
        }

    def _function(self, key: str) -> SavedFunction:
        if key not in self._made:
            program, grads, captured, results, ways = self._functions[key]
            program = replace(program, eqns=tuple(map(with_defaults, program.eqns)))
            self._made[key] = SavedFunction(program, grads, captured, results, self._backwards(ways), self._guard)
        return self._made[key]
