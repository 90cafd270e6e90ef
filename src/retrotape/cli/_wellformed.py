"""What every saved tape must fulfil beyond its check sums: nothing dangles, and no op may run that is not allowed."""

from __future__ import annotations

from functools import cache, partial
from importlib.resources import files

from retrotape.cli._tape import SavedTape
from retrotape.errors import UnsafeTapeError
from retrotape.ir import CUSTOM, Func, Functions, Program, Proto

_LARGEST_CONSTANT = 2**22  # bytes in an attribute; larger tensors are tensors


@cache
def allowed_ops() -> frozenset[str]:
    """Return the names of the ops that a tape may have. The list is read as text: its package would load TensorFlow."""
    listed = (files("retrotape") / "rules" / "allowed_ops.txt").read_text()
    return frozenset(listed.split()) | {CUSTOM}


def check_meaning(tape: SavedTape) -> None:
    """Raise where a tape contradicts itself, or has what it may not have."""
    check = partial(_check_ops, tape.container.path)
    check(tape.program)
    _check_values(tape)
    tape.checked.check()
    functions = Functions(tape.functions, check)
    for key in functions:
        _ = functions[key]
    functions.ways_back(tape.fields.get("backwards"), tape.program, whole=True)


def _check_ops(path: str, program: Program) -> None:
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


def _check_values(tape: SavedTape) -> None:
    for name, info in tape.container.tensors.items():
        tape.checked.var_of(name, info.dtype, info.shape)
        if info.dtype == "string":
            tape.container.strings(name)  # which says whether they follow each other
        elif info.dtype == "bool":
            tape.container.tensor(name)  # which says whether all are 0 or 1
