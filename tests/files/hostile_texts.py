"""Files that are in order as files, and whose text or JSON is hostile: how to build each, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ir.long_texts import TEXTS
from retrotape.files import store

Json = Any
LONG = 300_000  # characters: enough to tell a second from an hour
PROGRAM = "%0 : float32[2]\n%1 : float32[2] = Neg{T=float32}(%0) @0"
FRAME = '@0 = "a.py":1 in "f"'
FIELDS: dict[str, Json] = {
    "names": {"x": {"var": 0}, "y": {"var": 1}},
    "redacted": [],
    "variables": [],
    "assigned": [],
    "unrecorded_updates": [],
    "moments": [],
    "host_reads": [],
    "backward_functions": [],
}
FUNCTION = {
    "program": f"%0 : float32[2]\n{FRAME}",
    "cotangents": [0],
    "captures": [],
    "results": [[0]],
    "backward_functions": [],
}
CUSTOM = "%0 : float32[2]\n%1 : float32[2]\n%2 : float32[2] = custom_gradient{attrs}(%0, %1) @0"
USE = {"equation": 0, "function": "f", "inputs": [0], "outputs": [2], "captures": []}
ONE = "%0 : float32[2]\n%1 : float32[2] = IdentityN{T=(float32)}(%0) @0\n"
ESCAPES = "\x1b[31m\x1b]0;title\x07\r\n\x9b2J\u202e"


class Hostile(NamedTuple):
    """What a file is made of, and a piece of the message."""

    text: str
    program: str = PROGRAM
    functions: str | bytes = "{}"
    fields: dict[str, Json] | None = None
    frame: str = FRAME

    def write(self, path: Path) -> Path:
        """Write the file."""
        functions = self.functions.encode() if isinstance(self.functions, str) else self.functions
        program = f"{self.program}\n{self.frame}".encode()
        tensor = store.Stored("v/0", "float32", (2,), np.ones(2, np.float32))
        entries = {"program.txt": program, "functions.json": functions, "opdefs.pb": b""}
        store.write(path, entries, [tensor], {**FIELDS, **(self.fields or {})})
        return path


def _functions(**changed: Json) -> str:
    return json.dumps({"f": {**FUNCTION, **changed}})


def _chain(length: int) -> str:
    found: dict[str, Json] = {"f0": FUNCTION}
    for number in range(1, length):
        program = f"{CUSTOM.replace('{attrs}', chr(123) + 'name=b' + chr(39) * 2 + chr(125))}\n{FRAME}"
        use = {**USE, "function": f"f{number - 1}"}
        found[f"f{number}"] = {
            **FUNCTION,
            "program": program,
            "cotangents": [0],
            "captures": [1],
            "backward_functions": [use],
        }
    return json.dumps({**found, "f": found[f"f{length - 1}"]})


def _variable(**changed: Json) -> dict[str, Json]:
    return {"variables": [{"name": "w", "trainable": True, "read": True, "versions": [0], "made_by": [-1], **changed}]}


# What a reader must not take long over. Some of these are programs, if strange ones: then something else is amiss.
SLOW = {
    f"text: {name}": Hostile("", make(LONG))
    for name, make in TEXTS.items()
    if name not in ("many lines", "blank lines", "one blank line", "many equations", "many inputs")
}
REFUSED: dict[str, Hostile] = {
    "nested lists": Hostile("nested more than 32 deep", PROGRAM.replace("=float32}", "=" + "(" * 10**5)),
    "nested shapes": Hostile("nested more than 32 deep", PROGRAM.replace("=float32}", "=" + "Shape(" * 10**5)),
    "a var of 5000 digits": Hostile("a number has 5000 digits", "%" + "1" * 5000 + " : float32[]"),
    "a size of 5000 digits": Hostile("a number has 5000 digits", f"%0 : float32[{'1' * 5000}]"),
    "an attribute of 5000 digits": Hostile("a number has 5000 digits", PROGRAM.replace("=float32", "=" + "1" * 5000)),
    "a line of 5000 digits": Hostile("a number has 5000 digits", frame=f'@0 = "a":{"1" * 5000} in "f"'),
    "an op with escapes": Hostile("characters that cannot be printed", PROGRAM.replace("Neg", "Neg\x1b[2J")),
    "an escape that bytes do not have": Hostile("is no part of bytes", PROGRAM.replace("=float32", r"=b'\d'")),
    "a name for a dtype": Hostile("is no dtype", "%0 : ffloat[2]"),
    "a list of other items": Hostile("not of type list", ONE + "%2 : float32[2] = IdentityN{T=(1)}(%0) @0"),
    "a list of bytes": Hostile("not of type list", ONE + "%2 : float32[2] = IdentityN{T=(b'x')}(%0) @0"),
    "a list of lists": Hostile("not of type list", ONE + "%2 : float32[2] = IdentityN{T=((float32))}(%0) @0"),
    "a list of two kinds": Hostile("not of type list", ONE + "%2 : float32[2] = IdentityN{T=(float32, 1)}(%0) @0"),
    "functions: a number of 5000 digits": Hostile("a number of 400 digits", functions=f'{{"f": {"1" * 5000}}}'),
    "functions: a number of 10**6 digits": Hostile("a number of 400 digits", functions=f"[-{'1' * 10**6}]"),
    "functions: nested lists": Hostile("lists and objects in functions.json are too deep", functions="[" * 10**5),
    "functions: nested objects": Hostile("lists and objects in functions.json are too deep", functions='{"a":' * 10**5),
    "functions: many lists": Hostile(
        "functions.json takes too many bytes of memory", functions="[" + "[]," * 4_000_000 + "0]"
    ),
    "functions: many strings": Hostile(
        "functions.json takes too many bytes of memory", functions='["",' + '"",' * 5_000_000
    ),
    "functions: NaN": Hostile("functions.json holds NaN", functions="[NaN]"),
    "functions: infinity": Hostile("functions.json holds", functions="[1e999]"),
    "functions: a name twice": Hostile("functions.json has 'f' twice", functions='{"f": 1, "f": 2}'),
    "functions: half a surrogate pair": Hostile("functions.json is not UTF-8", functions=r'{"\ud800": 1}'),
    "functions: not UTF-8": Hostile("functions.json is not UTF-8", functions=b'{"\xff": 1}'),
    "functions: not JSON": Hostile("functions.json is not JSON", functions="{"),
    "functions: two values": Hostile("functions.json is not JSON", functions="{} {}"),
    "functions: empty": Hostile("functions.json is not JSON", functions=""),
    "functions: a list": Hostile("functions.json is not an object", functions="[]"),
    "functions: a slow program": Hostile(
        "Cannot read the line",
        CUSTOM.replace("{attrs}", "{name=b''}"),
        _functions(program=TEXTS["braces"](LONG)),
        {"backward_functions": [USE]},
    ),
    "functions: too many in each other": Hostile(
        "nested more than 16 deep", CUSTOM.replace("{attrs}", "{name=b''}"), _chain(40), {"backward_functions": [USE]}
    ),
    "a custom gradient of no name": Hostile("", CUSTOM.replace("{attrs}", "{name=5}"), _functions()),
    "a custom gradient of a name in no alphabet": Hostile(
        "custom gradient without a name",
        CUSTOM.replace("{attrs}", r"{name=b'\xff'}"),
        _functions(),
        {"backward_functions": [USE]},
    ),
    "assigned to no variable": Hostile(
        "assigned lists %1, which is not a value of a variable", fields={"assigned": [1]}
    ),
    "a gap of no variable": Hostile(
        "unrecorded_updates lists %0, which is not a value of a variable", fields={"unrecorded_updates": [0]}
    ),
    "a name of a megabyte": Hostile("makes no sense: the name 'xxx", fields={"names": {"x" * 10**6: 5}}),
    "a name with escapes": Hostile("refers to nothing", fields={"names": {ESCAPES: 5}}),
    "a redacted name with escapes": Hostile("nothing has that name", fields={"redacted": [ESCAPES]}),
    "a variable with escapes": Hostile("are not its own", fields=_variable(name=ESCAPES, made_by=[-1, -1])),
    "a layer with escapes": Hostile("ends before it begins", fields={"layers": [[ESCAPES, 1, 0, 0]]}),
    "a version of 300 digits": Hostile("versions holds 1000", fields=_variable(versions=[10**300])),
    "a negative version": Hostile("versions holds -1", fields=_variable(versions=[-1])),
    "a version that is a fraction": Hostile("versions is not a list of int", fields=_variable(versions=[0.5])),
    "a version that is true": Hostile("versions holds True", fields=_variable(versions=[True])),
    "the same version twice": Hostile("are not its own", fields={"variables": _variable()["variables"] * 2}),
    "lines of code that are none": Hostile(
        "code is not a list of pairs of a frame and a text", fields={"code": [[0, 1]]}
    ),
    "a line of code of no frame": Hostile("code holds 1, which is not from 0 to 0", fields={"code": [[1, "x"]]}),
    "backward functions that are text": Hostile(
        "a backward function is not a list of dict", fields={"backward_functions": "f"}
    ),
    "a backward function of no equation": Hostile(
        "equation holds 9", functions=_functions(), fields={"backward_functions": [{**USE, "equation": 9}]}
    ),
}
# What is in order, but for what it would do to a terminal. The name of a file must not end a line, or begin a color.
SHOWN: dict[str, Hostile] = {
    "a place with escapes": Hostile("", frame=f"@0 = {json.dumps(ESCAPES + '.py')}:1 in {json.dumps(ESCAPES)}"),
    "a place with NUL": Hostile("", frame='@0 = "a\\u0000.py":1 in "f"'),
    "a place with half a surrogate pair": Hostile("", frame=r'@0 = "\udc80.py":1 in "f"'),
    "a variable that is called so": Hostile("", fields=_variable(name=ESCAPES)),
    "a layer that is called so": Hostile("", fields={"layers": [[ESCAPES, 0, 1, 1]]}),
    "a function that is called so": Hostile("", fields={"called": [[0, ESCAPES]]}),
    "a line of code that is so": Hostile("", fields={"code": [[0, ESCAPES]]}),
    "a look that is called so": Hostile(
        "", fields={"host_reads": [{"var": 1, "before": 1, "frame": 0, "method": ESCAPES}]}
    ),
    "a name that is so": Hostile("", fields={"names": {ESCAPES: {"var": 0}, "x": {"var": 0}, "y": {"var": 1}}}),
    "a writer that is called so": Hostile("", fields={"retrotape": ESCAPES, "tensorflow": ESCAPES, "keras": ESCAPES}),
}
BUILDERS: dict[str, Callable[[Path], Path]] = {
    name: hostile.write for name, hostile in {**SLOW, **REFUSED, **SHOWN}.items()
}
