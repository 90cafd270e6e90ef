"""What every saved tape must fulfil beyond its check sums: nothing dangles, and no op may run that is not allowed."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from retrotape.commands._tape import Malformed, SavedTape, items, numbers, read_program
from retrotape.errors import UnsafeTapeError
from retrotape.ir import DTYPE_NUMBERS, Func, Program, Proto

CUSTOM = "custom_gradient"  # not an op of TensorFlow: an equation whose way back is in functions.json
_LARGEST_CONSTANT = 2**22  # bytes in an attribute; larger tensors are tensors
_DEEPEST = 16


@cache
def allowed_ops() -> frozenset[str]:
    """Return the names of the ops that a tape may have. The list is read as text: its package would load TensorFlow."""
    listed = (files("retrotape") / "saving" / "allowed_ops.txt").read_text()
    return frozenset(listed.split()) | {CUSTOM}


def check_meaning(tape: SavedTape) -> None:
    """Raise where a tape contradicts itself, or has what it may not have."""
    path, program = tape.container.path, tape.program
    _check_ops(path, program)
    _check_values(tape)
    for name in ("assigned", "opaque", "gaps", "moments"):
        tape.vars(name)
    _check_variables(tape)
    _check_looks(tape)
    functions = _Functions(path, tape.functions)
    for key in tape.functions:
        functions.check(key)
    found = functions.check_backwards(tape.fields.get("backwards"), program)
    for index, eqn in enumerate(program.eqns):
        if eqn.op == CUSTOM and index not in found:
            raise Malformed(f"equation {index} is a custom gradient without a way back")


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
    types = tape.program.types
    for name, info in tape.container.tensors.items():
        prefix, _, number = name.partition("/")
        if prefix != "v" or not number.isdecimal() or int(number) >= len(types):
            raise Malformed(f"tensor {name!r} belongs to no var")
        kind = types[int(number)]
        if DTYPE_NUMBERS[info.dtype] != kind.dtype or info.shape != kind.shape:
            raise Malformed(f"tensor {name!r} is {info.dtype}{list(info.shape)} where the program says {kind}")
        if info.dtype == "string":
            tape.container.strings(name)  # which says whether they follow each other
        elif info.dtype == "bool":
            tape.container.tensor(name)  # which says whether all are 0 or 1


def _check_variables(tape: SavedTape) -> None:
    taken: set[int] = set()
    for variable, row in zip(tape.variables, tape.fields["variables"], strict=True):
        since = numbers(row.get("since"), len(tape.program.eqns), "since", lowest=-1)
        if len(since) != len(variable.versions) or not taken.isdisjoint(variable.versions):
            raise Malformed(f"the values of variable {variable.name!r} are not its own")
        taken.update(variable.versions)


def _check_looks(tape: SavedTape) -> None:
    program = tape.program
    for row in items(tape.fields.get("looks"), dict, "looks"):
        numbers([row.get("var")], len(program.types), "looks")
        numbers([row.get("before")], len(program.eqns) + 1, "looks")
        numbers([row.get("frame")], len(program.frames), "looks")


class _Functions:
    """Checks functions, each of them once."""

    def __init__(self, path: str, written: dict[str, Any]) -> None:
        self._path, self._written = path, written
        self._checked: dict[str, tuple[int, int]] = {}  # how many gradients it takes, and how much it looks at
        self._open: list[str] = []

    def check(self, key: Any) -> tuple[int, int]:
        if not isinstance(key, str) or key not in self._written:
            raise Malformed(f"there is no function {key!r}")
        if key in self._open:
            raise Malformed(f"function {key} contains itself")
        if len(self._open) > _DEEPEST:
            raise Malformed(f"functions are nested more than {_DEEPEST} deep")
        if key not in self._checked:
            self._open.append(key)
            self._checked[key] = self._check(self._written[key])
            self._open.pop()
        return self._checked[key]

    def check_backwards(self, written: Any, program: Program) -> set[int]:
        """Check the ways back through equations of a program, and return which equations have one."""
        found = set()
        for row in items(written, dict, "backwards"):
            (index,) = numbers([row.get("equation")], len(program.eqns), "an equation")
            inputs, outputs, captures = (
                numbers(row.get(name), len(program.types), name) for name in ("inputs", "outputs", "captures")
            )
            fits = (len(outputs), len(captures)) == self.check(row.get("function"))
            eqn = program.eqns[index]
            if not fits or len(inputs) > len(eqn.inputs) or not set(outputs) <= set(eqn.outputs):
                raise Malformed(f"the way back through equation {index} does not fit it")
            found.add(index)
        return found

    def _check(self, written: Any) -> tuple[int, int]:
        if not isinstance(written, dict) or not isinstance(written.get("program"), str):
            raise Malformed("a function has no program")
        program = read_program(written["program"])
        _check_ops(self._path, program)
        grads, captured = (numbers(written.get(name), len(program.types), name) for name in ("grads", "captured"))
        if sorted([*grads, *captured]) != program.leaves():
            raise Malformed("the leaves of a function are not its gradients and what it looks at")
        for result in items(written.get("results"), list, "results"):
            if len(numbers(result, len(program.types), "results")) not in (0, 1, 3):
                raise Malformed("a result of a function is neither one tensor nor three")
        self.check_backwards(written.get("backwards"), program)
        return len(grads), len(captured)
