"""Recording → file."""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from retrotape import _tf, store
from retrotape._nests import describe, is_variable, unwrap
from retrotape._tf import tf
from retrotape._version import __version__
from retrotape.errors import NotPersistableError, NotRecordedError
from retrotape.execute import Values
from retrotape.ir import DTYPE_NAMES, LEAF, Eqn, Program
from retrotape.record import CUSTOM, Recording, is_away, looked_at, traits
from retrotape.rules import FORWARD
from retrotape.saving._document import Document, backwards_to_json, without_defaults
from retrotape.saving._functions import portable
from retrotape.saving._ops import allowed

Tensor = Any
VALUES = ("leaves", "needed", "all")
_WITHOUT_BYTES = ("resource", "variant")


class Prepared(NamedTuple):
    """Everything that a file will hold."""

    document: Document
    tensors: list[store.Stored]
    opdefs: bytes

    def size(self) -> int:
        """Return about how many bytes the file will have."""
        text = len(self.document.program) + len(json.dumps(self.document.functions)) + len(self.opdefs)
        return store.estimate(self.tensors) + text + len(json.dumps(self.document.fields))

    def write(self, path: str | os.PathLike[str], *, overwrite: bool, store_in: str | os.PathLike[str] | None) -> int:
        """Write it and return how many bytes that took."""
        entries = {
            "program.txt": self.document.program.encode(),
            "functions.json": json.dumps(self.document.functions, sort_keys=True).encode(),
            "opdefs.pb": self.opdefs,
        }
        return store.write(path, entries, self.tensors, self.document.fields, overwrite=overwrite, store=store_in)


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
    whole = portable(recording)
    paths = _keras_paths(whole)
    named = name_everything(whole, names, paths)
    unknown = set(redact) - named.keys()
    if unknown:
        raise ValueError(f"redact names {sorted(unknown)}, which is not among the names {sorted(named)}.")
    thawed = _Thawed(whole, freeze)
    program = thawed.program()
    hidden = {named[name]["var"] for name in redact if "var" in named[name]}
    used = {var for eqn in program.eqns for var in eqn.inputs} | whole.cell_of.keys()
    used |= {var for back in whole.backwards.values() for var in back.captures}
    used |= {named[name]["var"] for name in named if "var" in named[name]}
    kept = [var for var in _to_keep(whole, program, values) if var not in hidden and _is_of_use(program, used, var)]
    look_up = Values(whole)
    tensors = [_stored(f"v/{var}", look_up, var, whole) for var in kept]
    functions: dict[str, Any] = {}
    backwards = {thawed.moved[index]: back for index, back in whole.backwards.items() if index in thawed.moved}
    fields = {
        "retrotape": __version__,
        "tensorflow": tf.__version__,
        "keras": getattr(sys.modules.get("keras"), "__version__", None),
        "platform": {"machine": platform.machine(), "byteorder": sys.byteorder},
        "names": named,
        "redacted": sorted(redact),
        "variables": _variables(whole, thawed.moved, paths),
        "assigned": sorted(whole.assigned),
        "opaque": sorted(whole.opaque),
        "gaps": sorted(whole.gaps),
        "moments": sorted(whole.stopped_by_moments()),
        "looks": _looks(whole, thawed.moved),
        "backwards": backwards_to_json(backwards, functions),
    }
    return Prepared(Document(str(program), functions, fields), tensors, _opdefs(program, functions))


# ------------------------------------------------------------------ names


def name_everything(
    recording: Recording, names: Mapping[str, Any], paths: Mapping[int, str] | None = None
) -> dict[str, dict[str, int]]:
    """Return what each name stands for, the user's and those of variables: a var, or a variable by its number."""
    paths = _keras_paths(recording) if paths is None else paths
    found: dict[str, dict[str, int]] = {}
    order = {id(cell): number for number, cell in enumerate(recording.cells.values())}
    for name, value in _flat_names(names):
        part = unwrap(value)
        if is_variable(part):
            cell = recording.cells.get(part.handle._id)
            if cell is None:
                raise NotRecordedError(describe(part), "no op read or assigned it while recording", "Use it inside.")
            found[name] = {"variable": order[id(cell)]}
            continue
        if not hasattr(part, "_id"):
            raise TypeError(f"names={{{name!r}: ...}} takes a tensor or a variable, got {type(value).__name__}.")
        var = recording.known(part._id)
        if var is None:
            raise NotRecordedError(
                f"{name!r}, {describe(part)}", "it took no part in what was recorded", "Use it inside the block."
            )
        found[name] = {"var": var}
    for number, cell in enumerate(recording.cells.values()):
        name = _name_of(recording, cell, number, paths)
        while name in found and found[name] != {"variable": number}:
            name += "'"
        found.setdefault(name, {"variable": number})
    return found


def _flat_names(names: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in names.items():
        if not isinstance(name, str):
            raise TypeError(f"names= takes a mapping from names to tensors, got the key {name!r}.")
        if isinstance(value, Mapping):
            yield from _flat_names(value, f"{prefix}{name}/")
        elif isinstance(value, (list, tuple)):
            yield from _flat_names({str(number): item for number, item in enumerate(value)}, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _name_of(recording: Recording, cell: Any, number: int, paths: Mapping[int, str]) -> str:
    variable = recording.variables.get(cell.handle._id)
    if variable is None:
        return f"variable_{number}"
    return paths.get(id(variable)) or variable.name.removesuffix(":0")


def _keras_paths(recording: Recording) -> dict[int, str]:
    """Return the paths of Keras variables by the identity of the `tf.Variable` inside, which does not know its own."""
    keras = sys.modules.get("keras")
    if keras is None:
        return {}
    found = {}
    for holder in gc.get_referrers(*recording.variables.values()):
        owners = [holder, *(gc.get_referrers(holder) if isinstance(holder, dict) and "_value" in holder else ())]
        for owner in owners:
            if isinstance(owner, keras.Variable):
                found[id(owner._value)] = owner.path
    return found


def _variables(recording: Recording, moved: Mapping[int, int], paths: Mapping[int, str]) -> list[dict[str, Any]]:
    rows = []
    for number, cell in enumerate(recording.cells.values()):
        variable = recording.variables.get(cell.handle._id)
        rows.append(
            {
                "name": _name_of(recording, cell, number, paths),
                "trainable": bool(variable is not None and variable.trainable),
                "read": variable is not None,
                "versions": list(cell.versions),
                "since": [moved.get(index, -1) for index in cell.since],
            }
        )
    return rows


def _looks(recording: Recording, moved: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return where Python saw a value: which one, before which equation, at which line."""
    rows = []
    for identity, stamp, frame, how in recording.looks:
        var = recording.known(identity)
        if var is not None:
            before = sum(1 for other in recording.stamps if other < stamp)
            rows.append({"var": var, "before": sum(1 for old in moved if old < before), "frame": frame, "how": how})
    return rows


# ------------------------------------------------------------------ equations


class _Thawed:
    """The program without equations that a file cannot have, where what they gave can stand for them."""

    def __init__(self, recording: Recording, freeze: Collection[str]) -> None:
        self._recording, self._freeze = recording, set(freeze)
        self._kept = {index for index, eqn in enumerate(recording.builder.eqns) if self._stays(index, eqn)}
        self._drop_resources()
        self.moved = {old: new for new, old in enumerate(sorted(self._kept))}  # numbers of equations that stay

    def _stays(self, index: int, eqn: Eqn) -> bool:
        if eqn.op in self._freeze:
            return False
        if eqn.op in allowed():
            return True
        recording = self._recording
        if all(var in recording.inert | recording.ends or self._kind(var) in _WITHOUT_BYTES for var in eqn.outputs):
            return False  # no derivative goes through it anyway
        where = str(recording.program().frame_of(eqn))
        raise NotPersistableError(index, eqn.op, where, "this op is not on the list of ops that a tape may have")

    def _kind(self, var: int) -> str:
        return DTYPE_NAMES.get(self._recording.builder.types[var].dtype, "")

    def _drop_resources(self) -> None:
        """Drop what works on something without bytes, where nothing else looks at what it gave; else raise."""
        recording = self._recording
        eqns, producers = recording.builder.eqns, recording.builder.producers
        broken = set()
        for index in self._kept:
            for var in eqns[index].inputs:
                made = producers[var]
                from_outside = made == LEAF or made not in self._kept or made in broken
                if from_outside and self._kind(var) in _WITHOUT_BYTES:
                    broken.add(index)
        used = {var for index in self._kept - broken for var in eqns[index].inputs}
        used.update(var for back in recording.backwards.values() for var in back.captures)
        for index in sorted(broken):
            if not used.isdisjoint(eqns[index].outputs):
                where = str(recording.program().frame_of(eqns[index]))
                reason = "it uses a table, a queue, an iterator or the like, which has no value to write"
                raise NotPersistableError(index, eqns[index].op, where, reason, "move it out of the block")
        self._kept -= broken

    def program(self) -> Program:
        """Return the program as it will be written."""
        whole = self._recording.program()
        eqns = tuple(without_defaults(whole.eqns[index]) for index in self.moved)
        producers = tuple(self.moved.get(index, LEAF) for index in whole.producers)
        return Program(whole.types, producers, eqns, whole.frames)


def _opdefs(program: Program, functions: Mapping[str, Any]) -> bytes:
    names = {eqn.op for eqn in program.eqns}
    for function in functions.values():
        names |= {eqn.op for eqn in Program.parse(function["program"]).eqns}
    return _tf.op_list([name for name in sorted(names) if name != CUSTOM])


# ------------------------------------------------------------------ values


def _to_keep(recording: Recording, program: Program, values: str) -> list[int]:
    """Return the vars whose values are written: those that cannot be computed again, and what was asked for."""
    storable = [
        var
        for var, kind in enumerate(program.types)
        if DTYPE_NAMES.get(kind.dtype) not in _WITHOUT_BYTES and kind.shape is not None
    ]
    if values == "all":
        return [var for var in storable if var in recording.values or program.producers[var] != LEAF]
    wanted = {var for var in storable if var in recording.values and _is_needed(recording, program, var)}
    if values == "needed":
        wanted |= {var for eqn in program.eqns for var in looked_at(eqn)} & set(storable)
    return sorted(wanted)


def _is_of_use(program: Program, used: Collection[int], var: int) -> bool:
    return var in used or program.producers[var] != LEAF


def _is_needed(recording: Recording, program: Program, var: int) -> bool:
    producer = program.producers[var]
    if producer == LEAF:
        return True
    op = program.eqns[producer].op
    return var in recording.opaque or (op != CUSTOM and not traits(op).replayable and not _is_update(op))


def _is_update(op: str) -> bool:
    return op in FORWARD or op.startswith("ResourceGather")


def _stored(name: str, look_up: Callable[[int], Tensor], var: int, recording: Recording) -> store.Stored:
    dtype, dims = recording.builder.types[var]
    kind, shape = DTYPE_NAMES[dtype], tuple(size or 0 for size in dims or ())

    def array() -> np.ndarray:
        value = recording.values.get(var)
        return (look_up(var) if value is None or is_away(value) else value).numpy()

    if kind == "string":
        flat = np.asarray(array(), dtype=object).reshape(-1)
        return store.Stored(name, kind, shape, [bytes(item) for item in flat])
    return store.Stored(name, kind, shape, lambda: np.ascontiguousarray(array()).reshape(-1).view(np.uint8))
