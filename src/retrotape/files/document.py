"""A portable trace as a document: text and JSON that mean it, and nothing of TensorFlow in them."""

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
    functions: dict[str, Json]  # by the hash of what they are
    fields: dict[str, Json]


_INSIDE = (Frame("<custom gradient>", 0, "backward"),)


def backward_functions_to_json(backward: Mapping[int, BackwardFunction], functions: dict[str, Json]) -> list[Json]:
    """Return where backward functions are used, as JSON, and put the functions into `functions`, each once."""
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
    eqns = tuple(
        without_defaults(eqn)._replace(frame=0) for eqn in program.eqns
    )  # where it stands is not part of what it does
    written = {
        "program": str(Program(program.types, program.producers, eqns, _INSIDE)),
        "cotangents": list(function.cotangents),
        "captures": list(function.captures),
        "results": [list(result) for result in function.results],
        "backward_functions": backward_functions_to_json(program.facts.backward_functions, functions),
    }
    key = hashlib.sha256(json.dumps(written, sort_keys=True).encode()).hexdigest()[:16]
    functions[key] = written
    return key
