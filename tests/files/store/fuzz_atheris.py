"""Feed the readers with what a coverage-guided fuzzer makes up. `make fuzz` runs all; one alone:

    python tests/files/store/fuzz_atheris.py TARGET [-max_total_time=120] [FOLDER]

Needs `atheris`, which is not among the locked requirements. The arguments after the target are libFuzzer's; the folder
is where it keeps what it found. None of the targets loads TensorFlow.

container: the first byte says what the rest is: a whole file, `tape.json` after its checksum, the header, or
    `tape.json` of a folder. `tape.json` gets a right checksum, or nothing would get past it.
text: `Program.parse`; what it reads, it writes and reads again.
fields: `tape.json` of a small program, every field; the checksum is right.
functions: `functions.json` of a program with a custom gradient.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What takes an input and says whether it is in order, and inputs to begin with, of which the first is.
Target = tuple[Callable[[bytes], bool], list[bytes]]

PROGRAM = """%0 : float32[2]
%1 : float32[2] = Neg{T=float32}(%0) @0
%2 : float32[2] = custom_gradient{name=b'f'}(%0, %1) @1
%3 : float32[], %4 : int32[?,3] = Op{a=(1, -2.5e-3, inf), b=Shape((-1, 3)), c=Func("g"), d=Proto(b'\\x08\\x01')}(%2) @0
@0 = "a.py":1 in "f"
@1 = "b \\u00e9\\n.py":-2 in "<lambda>"
"""
FUNCTION = {
    "program": '%0 : float32[2]\n%1 : float32[2]\n%2 : float32[2] = Mul{T=float32}(%0, %1) @0\n@0 = "<c>":0 in "b"',
    "cotangents": [0],
    "captures": [1],
    "results": [[2]],
    "backward_functions": [],
}
USE = {"equation": 1, "function": "f", "inputs": [0], "outputs": [2], "captures": [1]}
FIELDS: dict[str, Any] = {
    "retrotape": "1",
    "names": {"x": {"var": 0}, "w": {"variable": 0}},
    "redacted": ["x"],
    "variables": [{"name": "w", "trainable": True, "read": True, "versions": [1], "made_by": [0], "frozen": False}],
    "assigned": [1],
    "unrecorded_updates": [],
    "moments": [1],
    "host_reads": [{"var": 1, "before": 1, "frame": 0, "method": "float"}],
    "layers": [["m/dense", 0, 1, 1], ["m/dense", 1, 2, -2]],
    "called": [[0, "ops.argmin"]],
    "code": [[0, "y = -x"]],
    "python_constants": [[0, 1]],
    "backward_functions": [USE],
}


def _refused(message: str) -> bool:
    assert message.isprintable()
    assert len(message) < 1000
    return False


def container(folder: Path) -> Target:
    """Return what reads files and folders."""
    from files.store import forge
    from files.store.reading import read_all
    from retrotape.errors import CorruptTapeError, TapeVersionError, UnsafeTapeError
    from retrotape.files.store import Limits

    limits = Limits(json_memory=1 << 20)
    tape = forge.folder(folder / "folder.tape")

    def build(kind: int, data: bytes) -> Path:
        if kind == 3:
            (tape / "tape.json").write_bytes(forge.seal(data))
            return tape
        path = folder / "a.tape"
        path.write_bytes([data, forge.file(forge.seal(data)), forge.file(text=data)][kind])
        return path

    def read(data: bytes) -> bool:
        if not data:
            return False
        try:
            found = read_all(build(data[0] % 4, data[1:]), mmap=bool(data[0] & 4), limits=limits)
        except (CorruptTapeError, TapeVersionError, UnsafeTapeError) as error:
            return _refused(str(error))
        for name, info in found["tensors"].items():
            if info.dtype != "string":
                assert forge.sha256(found["values"][name]) == info.sha256
        return True

    in_folder = forge.as_rest(forge.fields(features=["blobs"], store="blobs"))
    seeds = [forge.file(), forge.as_rest(forge.fields()), forge.padded(forge.header()), in_folder]
    return read, [bytes([number]) + seed for number, seed in enumerate(seeds)]


def text(folder: Path) -> Target:
    """Return what reads programs."""
    from retrotape.errors import MalformedProgramError
    from retrotape.ir import Program

    def read(data: bytes) -> bool:
        try:
            program = Program.parse(data.decode("utf-8", "surrogateescape"))
        except MalformedProgramError as error:
            return _refused(str(error))
        again = str(program)
        assert all(line.isprintable() for line in again.split("\n"))
        assert str(Program.parse(again)) == again
        return True

    return read, [PROGRAM.encode(), *(line.encode() for line in PROGRAM.splitlines())]


def _refusals() -> tuple[type[Exception], ...]:
    from retrotape.errors import CorruptTapeError, UnsafeTapeError
    from retrotape.ir import NONSENSE

    return (*NONSENSE, CorruptTapeError, UnsafeTapeError)


def fields(folder: Path) -> Target:
    """Return what reads the fields of `tape.json`."""
    from files.store import forge
    from retrotape.files.store import Limits
    from retrotape.files.store._errors import TapeErrors
    from retrotape.files.store._json import unseal
    from retrotape.ir import Fields, Program, makes_no_sense

    program, refusals = Program.parse(PROGRAM), _refusals()

    def read(data: bytes) -> bool:
        try:
            found = Fields(unseal(TapeErrors("a.tape"), forge.seal(b'",' + data), Limits()), program)
            found.check()
        except refusals as error:
            return _refused(makes_no_sense(error))
        shown = [
            *(row.name for row in found.variables),
            *(row.method for row in found.host_reads),
            *found.called.values(),
            *found.code.values(),
        ]
        assert all(text.isprintable() for text in [*shown, *(row.path for row in found.layers)])
        return True

    return read, [json.dumps(FIELDS)[1:].encode(), *(f'"{k}":{json.dumps(v)}}}'.encode() for k, v in FIELDS.items())]


def functions(folder: Path) -> Target:
    """Return what reads `functions.json`."""
    from retrotape.files.store import Limits
    from retrotape.files.store._errors import TapeErrors
    from retrotape.files.store._json import parse
    from retrotape.ir import Functions, Program, makes_no_sense

    program, refusals = Program.parse(PROGRAM), _refusals()

    def read(data: bytes) -> bool:
        try:
            found = Functions(parse(TapeErrors("a.tape"), "functions.json", data, Limits()), lambda program: program)
            for key in found:
                assert found[key].program.types
            found.backward_functions([USE], program, whole=True)
        except refusals as error:
            return _refused(makes_no_sense(error))
        return True

    nested = {"f": FUNCTION, "g": {**FUNCTION, "backward_functions": [USE]}}
    return read, [json.dumps({"f": FUNCTION}).encode(), json.dumps(nested).encode()]


TARGETS: dict[str, Callable[[Path], Target]] = {
    "container": container,
    "text": text,
    "fields": fields,
    "functions": functions,
}


def main() -> None:
    """Fuzz until libFuzzer has had enough."""
    import atheris

    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python {sys.argv[0]} {'|'.join(TARGETS)} [-max_total_time=120] [FOLDER]")
    name = sys.argv.pop(1)
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3] / "src")]
    with atheris.instrument_imports(include=["retrotape.files.store", "retrotape.ir", "retrotape.errors", "json"]):
        pass
    memory = Path("/dev/shm")
    folder = (memory if memory.is_dir() else Path(tempfile.gettempdir())) / f"fuzz-retrotape-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "seeds").mkdir(parents=True)
    read, seeds = TARGETS[name](folder)
    for number, seed in enumerate(seeds):
        (folder / "seeds" / str(number)).write_bytes(seed)

    def one_input(data: bytes) -> None:
        read(data)

    atheris.Setup([*sys.argv, str(folder / "seeds")], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
