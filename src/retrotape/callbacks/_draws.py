"""Random numbers of a recorded step, which XLA draws otherwise than eager code does."""

from __future__ import annotations

import re
from typing import Any

from retrotape.ir import Program
from retrotape.tf.core import op_def, tf
from retrotape.tf.functions import operations_of

XLA = "XLA draws other random numbers than eager code does"
_DRAWS = re.compile(
    r"(Stateless|Stateful)?(Random(?!Get)|TruncatedNormal|ParameterizedTruncatedNormal|Multinomial)"
    r"|Stateful(Standard|Uniform)|Stateless(Shuffle|Sample)|RngReadAndSkip"
)


def drawing_op(program: Program) -> str | None:
    """Return the first op of a program that draws random numbers, also within a function, and where it was run.

    >>> with rt.Tape() as tape:
    ...     x = tf.random.stateless_uniform([], seed=[1, 2])
    >>> drawing_op(tape.program).partition(" at ")[0]
    'StatelessRandomUniformV2'
    """
    for eqn in program.eqns:
        inner = [eqn.op] if op_def(eqn.op) is not None else operations_of(eqn.op)
        drawn = next((op for op in inner if _DRAWS.match(op)), None)
        if drawn is not None:
            return f"{drawn} at {program.frame_of(eqn)}"
    return None


def is_compiled_by_xla(model: Any) -> bool:
    """Return whether XLA compiles the steps of a model in `fit`, all of them or what it selects."""
    return not model.run_eagerly and bool(model.jit_compile or tf.config.optimizer.get_jit())
