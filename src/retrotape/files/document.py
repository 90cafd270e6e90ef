"""A portable trace as text and JSON, independent of TensorFlow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

from retrotape._types import Json
from retrotape.ir import BackwardFunction, Frame, FunctionProgram, Program
from retrotape.record import without_defaults


class Document(NamedTuple):
    """What is written beside the tensors."""

    program: str
    functions: dict[str, Json]  # by the hash of their content
    fields: dict[str, Json]


_FRAMES = (Frame("<custom gradient>", 0, "backward"),)


def backward_functions_to_json(backward: Mapping[int, BackwardFunction], functions: dict[str, Json]) -> list[Json]:
    """Return the uses of backward functions as JSON, and add the functions to `functions`, each once."""
    return [
        {
            "equation": index,
            "function": _function_to_json(back.function, functions),
            "inputs": list(back.inputs),
            "outputs": list(back.outputs),
            "captures": list(back.captures),
        }
        for index, back in sorted(backward.items())
    ]


def _function_to_json(function: FunctionProgram, functions: dict[str, Json]) -> str:
    program = function.program
    # Frames are dropped: they do not change what a function computes.
    eqns = tuple(without_defaults(eqn)._replace(frame=0) for eqn in program.eqns)
    written = {
        "program": str(Program(program.types, program.producers, eqns, _FRAMES)),
        "cotangents": list(function.cotangents),
        "captures": list(function.captures),
        "results": [list(result) for result in function.results],
        "backward_functions": backward_functions_to_json(program.facts.backward_functions, functions),
    }
    key = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:16]
    functions[key] = written
    return key
