"""The process that holds a stranger's tape: limits first, then the file, then questions until the pipe closes."""

from __future__ import annotations

import json
import os
import resource
import sys
import warnings
from typing import IO, Any

TOLD = frozenset(("why", "first_nonfinite", "summary"))  # answered in words
QUESTIONS = TOLD | {"gradient", "vjp", "jacobian", "batch_jacobian", "per_example", "jvp", "hvp", "hessian", "value"}


def main() -> None:
    """Serve one tape: `python -m retrotape._isolated_child PATH LIMITS`."""
    path, limits = sys.argv[1], json.loads(sys.argv[2])
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # whatever else writes to the standard output must not get between the messages
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    import retrotape.loaded
    from retrotape import _wire, store

    _limit(limits)
    try:
        agreed = None if limits["limits"] is None else store.Limits(**limits["limits"])
        tape = retrotape.loaded.load_here(path, isolated=True, limits=agreed, **limits["load"])
        program = tape.program
        _wire.send(answers, {"names": list(tape.names), "equations": len(program.eqns)})
    except Exception as error:
        _wire.send(answers, _explained(error))
        return
    _serve(tape, sys.stdin.buffer, answers, limits["memory"])


def _limit(limits: dict[str, Any]) -> None:
    """Bound what TensorFlow, which is loaded by now, may take beyond what it has."""
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    bounds = {
        resource.RLIMIT_AS: mapped + limits["memory"],
        resource.RLIMIT_CPU: limits["seconds"],
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
    }
    for kind, bound in bounds.items():
        _, hard = resource.getrlimit(kind)
        bound = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        last = bound + 5 if kind == resource.RLIMIT_CPU and hard == resource.RLIM_INFINITY else bound
        resource.setrlimit(kind, (bound, last))  # the signal that comes first says why


def _serve(tape: Any, questions: IO[bytes], answers: IO[bytes], largest: int) -> None:
    from retrotape import _wire
    from retrotape.errors import NotDifferentiableWarning

    while True:
        try:
            asked = _wire.receive(questions, largest)
        except EOFError:
            return
        try:
            if asked["method"] not in QUESTIONS:
                raise ValueError(f"{asked['method']} cannot be asked of an isolated tape")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", NotDifferentiableWarning)
                found = getattr(tape, asked["method"])(*asked["args"], **asked["options"])
            if asked["method"] in TOLD and found is not None:
                found = str(found)
            told = [str(one.message) for one in caught if one.category is NotDifferentiableWarning]
            _wire.send(answers, {"answer": found, "warnings": told})
        except Exception as error:
            _wire.send(answers, _explained(error))


def _explained(error: Exception) -> dict[str, Any]:
    return {"error": type(error).__name__, "text": str(error), "ours": type(error).__module__ == "retrotape.errors"}


if __name__ == "__main__":
    main()
