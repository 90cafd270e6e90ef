"""Checks of a saved tape beyond checksums: no dangling references, and only allowed ops."""

from __future__ import annotations

from functools import cache, partial
from importlib.resources import files

from retrotape.cli._tape import SavedTape, refuse_nonsense
from retrotape.errors import UnsafeTapeError
from retrotape.ir import OWN_OPS, Func, Functions, Program, Proto

_LARGEST_CONSTANT = 2**22  # bytes in an attribute; larger constants are stored as tensors


@cache
def allowed_ops() -> frozenset[str]:
    """Return the names of the ops that a tape may have, read as text: importing the list would load TensorFlow."""
    listed = (files("retrotape") / "rules" / "allowed_ops.txt").read_text()
    return frozenset(listed.split()) | OWN_OPS


def check_meaning(tape: SavedTape) -> None:
    """Raise if a tape is inconsistent, or contains something that it must not."""
    check = partial(_check_ops, tape.container.path)
    with refuse_nonsense(tape.container.path):
        check(tape.program)
        _check_values(tape)
        tape.checked.check()
        functions = Functions(tape.functions, check)
        for key in functions:
            _ = functions[key]
        functions.backward_functions(tape.fields.get("backward_functions"), tape.program, whole=True)


def _check_ops(path: str, program: Program) -> Program:
    for eqn in program.eqns:
        if eqn.op not in allowed_ops():
            raise UnsafeTapeError(
                path,
                f"it names the op {eqn.op}, which is not on the list of ops that a tape may run",
                f"If you trust it: `rt.load(path, allow_ops={{{eqn.op!r}}})`.",
            )
        for _, value in eqn.attrs:
            if isinstance(value, Func):
                raise UnsafeTapeError(path, f"op {eqn.op} calls a function, {value.name!r}, and a tape has none")
            data = value.data if isinstance(value, Proto) else value
            if isinstance(data, bytes) and len(data) > _LARGEST_CONSTANT:
                raise UnsafeTapeError(path, f"an attribute of op {eqn.op} has {len(data)} bytes")
    return program


def _check_values(tape: SavedTape) -> None:
    for name, info in tape.container.tensors.items():
        tape.checked.var_of(name, info.dtype, info.shape)
        if info.dtype == "string":
            tape.container.strings(name)  # checks that offsets are in order
        elif info.dtype == "bool":
            tape.container.tensor(name)  # checks that booleans are 0 or 1
