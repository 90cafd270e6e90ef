"""Recording → file."""

from __future__ import annotations

import json
import os
import platform
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

from retrotape._version import __version__
from retrotape.errors import NotRecordedError, ReplicaError
from retrotape.files import store
from retrotape.files.document import Document, backwards_to_json
from retrotape.files.kept import VALUES, Kept
from retrotape.ir import Program
from retrotape.record import CUSTOM, UNCOUNTED, Recording, born, cells_in
from retrotape.tf import core
from retrotape.tf.core import whole_of
from retrotape.tf.nests import describe, is_variable, unwrap
from retrotape.transform import Thawed, portable

_PER_ENTRY = 180  # bytes around each part of a file, and its check sum


class Prepared(NamedTuple):
    """Everything that a file will hold."""

    document: Document
    tensors: list[store.Stored]
    opdefs: bytes

    def size(self) -> int:
        """Return about how many bytes the file will have."""
        tables = {tensor.name: [tensor.dtype, tensor.shape, "0" * 64] for tensor in self.tensors}
        entries = self._entries()
        parts = [*entries.values(), json.dumps({**self.document.fields, **tables}).encode()]
        return store.estimate(self.tensors) + sum(map(len, parts)) + _PER_ENTRY * (len(parts) + 1)

    def _entries(self) -> dict[str, bytes]:
        return {
            "program.txt": self.document.program.encode(),
            "functions.json": json.dumps(self.document.functions, sort_keys=True).encode(),
            "opdefs.pb": self.opdefs,
        }

    def write(self, path: str | os.PathLike[str], *, overwrite: bool, store_in: str | os.PathLike[str] | None) -> int:
        """Write it and return how many bytes that took."""
        return store.write(
            path,
            self._entries(),
            self.tensors,
            self.document.fields,
            overwrite=overwrite,
            store=store_in,
            limits=store.Limits(json_memory=None),  # a long tape is not lost; its reader raises the limit
        )


def prepare(
    recording: Recording,
    names: Mapping[str, Any],
    *,
    values: str = "leaves",
    redact: Collection[str] = (),
    freeze: Collection[str] = (),
) -> Prepared:
    """Return what a file of this recording will hold, or raise where something cannot be saved."""
    if values not in VALUES:
        raise ValueError(f"values must be one of {', '.join(map(repr, VALUES))}, got {values!r}.")
    redact, freeze = _several("redact", redact), _several("freeze", freeze)
    _refuse_parts(recording)
    whole = portable(recording, freeze)
    named = name_everything(whole, names)
    unknown = redact - named.keys()
    if unknown:
        raise ValueError(f"redact names {sorted(unknown)}, which is not among the names {sorted(named)}.")
    used = {what["var"] for what in named.values() if "var" in what} | whole.cell_of.keys()
    used |= {var for back in whole.backwards.values() for var in back.captures}
    versions = [cell.versions for cell in whole.cells.values()]
    stand_for = {name: [what["var"]] if "var" in what else versions[what["variable"]] for name, what in named.items()}
    thawed = Thawed(whole, freeze, used, stand_for, redact)
    program = thawed.program()
    kept = Kept(whole, program, values, used)
    redact |= kept.withhold(stand_for, redact)
    functions: dict[str, Any] = {}
    backwards = {thawed.moved[index]: back for index, back in whole.backwards.items() if index in thawed.moved}
    fields = {
        "retrotape": __version__,
        "tensorflow": core.version,
        "keras": getattr(sys.modules.get("keras"), "__version__", None),
        "platform": {"machine": platform.machine(), "byteorder": sys.byteorder},
        "names": named,
        "redacted": sorted(redact),
        "variables": _variables(whole, thawed.moved),
        "assigned": sorted(whole.assigned),
        "gaps": sorted(whole.gaps),
        "moments": sorted(whole.stopped_by_moments()),
        "looks": _looks(whole, thawed.moved),
        "called": [list(pair) for pair in whole.frames.all_called()],
        "layers": _layers(whole, thawed.moved),
        "born": _births(recording, whole),
        "backwards": backwards_to_json(backwards, functions),
    }
    return Prepared(Document(str(program), functions, fields), kept.tensors(), _opdefs(program, functions))


def _refuse_parts(recording: Recording) -> None:
    """Raise where a variable has a part in each of several replicas: in a file its name would stand for one of them."""
    for variable in recording.variables.values():
        whole = whole_of(variable)
        if whole is not None and len(cells_in(recording, whole)) > 1:
            raise ReplicaError(
                f"This tape cannot be saved: {whole.name!r} has a part in each replica",
                "Save tapes that were opened inside the replica function: `def step(x): with rt.Tape() as tape: ...; "
                "tape.save(...)`, or ask this one in its own process.",
            )


def _several(option: str, given: Collection[str]) -> set[str]:
    if isinstance(given, str):
        raise TypeError(f"{option}= takes a list of names, got {given!r}: `{option}=[{given!r}]`.")
    if not all(isinstance(name, str) for name in given):
        raise TypeError(f"{option}= takes names, got {', '.join(type(name).__name__ for name in given)}.")
    return set(given)


# ------------------------------------------------------------------ names


def name_everything(recording: Recording, names: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return what each name stands for, the user's and those of variables: a var, or a variable by its number."""
    found: dict[str, dict[str, int]] = {}
    order = {id(cell): number for number, cell in enumerate(recording.cells.values())}
    for name, value in _flat_names(names):
        if name in found:
            raise ValueError(f"names= gives the name {name!r} twice.")
        part = unwrap(value)
        if is_variable(part):
            cell = next(iter(cells_in(recording, part)), None)
            if cell is None:
                raise _absent(name, part, "no op read or assigned it while recording")
            found[name] = {"variable": order[id(cell)]}
            continue
        if not hasattr(part, "_id"):
            raise TypeError(f"names={{{name!r}: ...}} takes a tensor or a variable, got {type(value).__name__}.")
        var = recording.known(part._id)
        if var is None:
            raise _absent(name, part, "it took no part in what was recorded")
        found[name] = {"var": var}
    numbers: dict[str, Iterator[str]] = {}  # for variables of one name
    for number, cell in enumerate(recording.cells.values()):
        name = own = _name_of(recording, cell, number)
        while name in found and found[name] != {"variable": number}:
            name = next(numbers.setdefault(own, _numbered(own)))
        found.setdefault(name, {"variable": number})
    return found


def _numbered(name: str) -> Iterator[str]:
    """Yield the names of further variables that are called the same: v', v'3, v'4, ..."""
    yield f"{name}'"
    yield from (f"{name}'{number}" for number in count(3))


def _absent(name: str, part: Any, reason: str) -> NotRecordedError:
    remedy = "Use it inside the block, or leave the name out."
    return NotRecordedError(f"{name!r}, {describe(part)},", reason, remedy, role="named")


def _flat_names(names: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in names.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"names= takes a mapping from names to tensors, got the key {name!r}.")
        if any("\ud800" <= letter <= "\udfff" for letter in name):
            raise ValueError(f"names= takes names that can be written as text, got {name!r}.")
        if isinstance(value, Mapping):
            yield from _flat_names(value, f"{prefix}{name}/")
        elif isinstance(value, (list, tuple)):
            yield from _flat_names({str(number): item for number, item in enumerate(value)}, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _name_of(recording: Recording, cell: Any, number: int) -> str:
    variable = recording.variables.get(cell.handle._id)
    if variable is None:
        return f"variable_{number}"
    return recording.path_of(variable)


def _variables(recording: Recording, moved: Mapping[int, int]) -> list[dict[str, Any]]:
    rows = []
    for number, cell in enumerate(recording.cells.values()):
        variable = recording.variables.get(cell.handle._id)
        rows.append(
            {
                "name": _name_of(recording, cell, number),
                "trainable": variable is not None and recording.is_trainable(variable),
                **({"frozen": True} if variable is not None and recording.is_frozen(variable) else {}),
                "read": variable is not None,
                "versions": list(cell.versions),
                "since": [moved.get(index, -1) for index in cell.since],
            }
        )
    return rows


def _looks(recording: Recording, moved: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return where Python saw a value: which one, before which equation, at which line."""
    rows = []
    stamps, stay = sorted(recording.stamps), sorted(moved)
    for identity, stamp, frame, how, _ in recording.looks:
        var = recording.known(identity)
        if var is not None:
            before = bisect_left(stay, bisect_left(stamps, stamp))
            rows.append({"var": var, "before": before, "frame": frame, "how": how})
    return rows


def _layers(recording: Recording, moved: Mapping[int, int]) -> list[list[Any]]:
    """Return the calls of layers: path, the first equation inside, the first one after it, what it returned."""
    rows: list[list[Any]] = []
    stamps, stay = sorted(recording.stamps), sorted(moved)
    for scope in sorted(recording.scopes.values(), key=lambda scope: scope.begin):
        begin, end = (bisect_left(stay, bisect_left(stamps, moment)) for moment in (scope.begin, scope.end))
        returned = recording.known(scope.returned)
        unknown = -2 if scope.returned == UNCOUNTED else -1
        rows.append([scope.path, begin, end, unknown if returned is None else returned])
    return rows


def _births(recording: Recording, whole: Recording) -> list[list[int]]:
    """Return the constants that Python made while recording, each with the number of looks before it."""
    moments = [look.moment for look in whole.looks if whole.known(look.identity) is not None]
    return sorted([var, bisect_left(moments, moment)] for var, moment in born(whole, recording).items())


def _opdefs(program: Program, functions: Mapping[str, Any]) -> bytes:
    names = {eqn.op for eqn in program.eqns}
    for function in functions.values():
        names |= {eqn.op for eqn in Program.parse(function["program"]).eqns}
    return core.op_list([name for name in sorted(names) if name != CUSTOM])
