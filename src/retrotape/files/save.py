"""Trace → file."""

from __future__ import annotations

import json
import os
import platform
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

from retrotape._version import __version__
from retrotape.errors import NotRecordedError
from retrotape.files import store
from retrotape.files.document import Document, backward_functions_to_json
from retrotape.files.kept import VALUES, Kept
from retrotape.ir import COLLECTIVES, OWN_OPS, UNCOUNTED, Program
from retrotape.record import Trace, histories_in, python_constants
from retrotape.tf import core
from retrotape.tf.core import DistributedValues, identity_of, tf
from retrotape.tf.nests import VARIABLES, TensorRef, describe, unwrap
from retrotape.tf.replicas import values_of
from retrotape.tf.workers import is_mirrored
from retrotape.transform import Pruned, merge_mirrored, portable, runs_user_code

_REPLICA = "/replica_"


class Prepared(NamedTuple):
    """Everything that a file will hold."""

    document: Document
    tensors: list[store.Stored]
    opdefs: bytes

    def size(self) -> int:
        """Return how many bytes the file will have."""
        return store.estimate(self._entries(), self.tensors, self.document.fields)

    def with_fields(self, more: Mapping[str, Any]) -> Prepared:
        """Return the same with more fields."""
        return self._replace(document=self.document._replace(fields={**self.document.fields, **more}))

    def _entries(self) -> dict[str, bytes]:
        return {
            "program.txt": self.document.program.encode(),
            "functions.json": json.dumps(self.document.functions, sort_keys=True).encode(),
            "opdefs.pb": self.opdefs,
        }

    def write(self, path: str | os.PathLike[str], *, overwrite: bool, store_in: str | os.PathLike[str] | None) -> int:
        """Write the file and return how many bytes were written."""
        return store.write(
            path,
            self._entries(),
            self.tensors,
            self.document.fields,
            overwrite=overwrite,
            store=store_in,
            limits=store.Limits(json_memory=None),  # a long tape can be saved; its reader raises the limit
        )


class Flags(NamedTuple):
    """What may change about a variable after it was recorded: a layer is frozen, a strategy ends."""

    trainable: bool
    frozen: bool
    mirrored: bool  # all workers of a job keep it equal


class Snapshot(NamedTuple):
    """Everything that a save depends on, as it was at one moment.

    Attributes:
      trace: What was recorded.
      whole: The same without what has meaning only in this process; None if that is still to be computed.
      names: What tensors and variables are called.
      flags: Of each variable, by key of its history.
      values: As for `save`.
      redact: As for `save`.
      freeze: As for `save`.
      code: As for `save`.
    """

    trace: Trace
    whole: Trace | None
    names: Mapping[str, Any]
    flags: Mapping[int, Flags]
    values: str
    redact: Collection[str]
    freeze: Collection[str]
    code: bool

    def detached(self) -> Snapshot:
        """Return a snapshot that nothing changes, neither the tape nor its variables nor the caller's names.

        Raises for names that are not on the tape. Runs the backward functions of custom gradients, which are Python
        code: later, or on another thread, they might do something else.
        """
        trace = self.trace.fork()
        named = name_everything(trace, self.names)
        if not trace.facts.calls:  # else there may be more variables, inside calls
            _refuse_unknown({name for given in self.redact for name in _parts_named(given, named)}, named)
        whole = single_variables(portable(trace, self.freeze), self.names) if runs_user_code(trace) else None
        return self._replace(trace=trace, whole=whole, names=dict(_flat_names(self.names)))

    def prepare(self) -> Prepared:
        """Return the content of a file, or raise if something cannot be saved."""
        return _prepare(self)


def take_snapshot(
    trace: Trace,
    names: Mapping[str, Any],
    *,
    values: str = "leaves",
    redact: Collection[str] = (),
    freeze: Collection[str] = (),
    code: bool = True,
) -> Snapshot:
    """Return what a file of this trace depends on, or raise if an option makes no sense."""
    if values not in VALUES:
        raise ValueError(f"values must be one of {', '.join(map(repr, VALUES))}, got {values!r}.")
    redact, freeze = _as_name_set("redact", redact), _as_name_set("freeze", freeze)
    if not isinstance(code, bool):
        raise TypeError(f"code= takes True or False, got {type(code).__name__}. As a name: `names={{'code': ...}}`.")
    mirrored = {key for key, whole in trace.wholes.items() if is_mirrored(whole)}
    flags = {
        key: Flags(trace.is_trainable(one), trace.is_frozen(one), key in mirrored)
        for key, one in trace.variables.items()
    }
    return Snapshot(trace, None, names, flags, values, redact, freeze, code)


def _prepare(snapshot: Snapshot) -> Prepared:
    trace, whole, names, flags, values, redacted, freeze, code = snapshot
    whole = single_variables(portable(trace, freeze), names) if whole is None else whole
    named = name_everything(whole, names)
    redact = {name for given in redacted for name in _parts_named(given, named)}
    _refuse_unknown(redact, named)
    used = {what["var"] for what in named.values() if "var" in what} | whole.facts.history_of.keys()
    used |= {var for back in whole.facts.backward_functions.values() for var in back.captures}
    versions = [history.versions for history in whole.facts.histories.values()]
    vars_of = {name: [what["var"]] if "var" in what else versions[what["variable"]] for name, what in named.items()}
    pruned = Pruned(whole, freeze, used, vars_of, redact)
    program = pruned.program()
    kept = Kept(whole, program, values, used)
    redact |= kept.withhold(vars_of, redact)
    functions: dict[str, Any] = {}
    backward = {
        pruned.moved[index]: back for index, back in whole.facts.backward_functions.items() if index in pruned.moved
    }
    fields = {
        "features": ["shards"] if any(eqn.op in COLLECTIVES for eqn in program.eqns) else [],
        "retrotape": __version__,
        "tensorflow": core.version,
        "keras": getattr(sys.modules.get("keras"), "__version__", None),
        "platform": {"machine": platform.machine(), "byteorder": sys.byteorder},
        "names": named,
        "redacted": sorted(redact),
        "variables": _variables(whole, pruned.moved, flags),
        "assigned": sorted(whole.facts.assigned),
        "unrecorded_updates": sorted(whole.facts.unrecorded_updates),
        "moments": sorted(whole.stopped_by_moments()),
        "host_reads": _host_reads(whole, pruned.moved),
        "called": [list(pair) for pair in whole.frames.all_called()],
        "code": [list(pair) for pair in whole.frames.all_code()] if code else [],
        "layers": _layers(whole, pruned.moved),
        "python_constants": _python_constants(trace, whole),
        "backward_functions": backward_functions_to_json(backward, functions),
    }
    return Prepared(Document(str(program), functions, fields), kept.tensors(), _opdefs(program, functions))


def single_variables(trace: Trace, names: Mapping[str, Any]) -> Trace:
    """Return a portable trace in which each mirrored variable is one: in a file, a name refers to all its parts."""
    if not trace.wholes:
        return trace
    parts = [unwrap(value) for _, value in _flat_names(names)]
    tensors = (trace.tensors.get(identity_of(part)) for part in parts if isinstance(part, (tf.Tensor, TensorRef)))
    return merge_mirrored(trace, [var for var in tensors if var is not None])


def _parts_named(given: str, named: Collection[str]) -> list[str]:
    """Return the names of a variable that has several, one for each replica; otherwise the name itself."""
    return [name for name in named if name.startswith(given + _REPLICA)] or [given]


def _refuse_unknown(redact: Collection[str], named: Mapping[str, Any]) -> None:
    unknown = set(redact) - named.keys()
    if unknown:
        raise ValueError(f"redact names {sorted(unknown)}, which is not among the names {sorted(named)}.")


def _as_name_set(option: str, given: Collection[str]) -> set[str]:
    if isinstance(given, str):
        raise TypeError(f"{option}= takes a list of names, got {given!r}: `{option}=[{given!r}]`.")
    if not all(isinstance(name, str) for name in given):
        raise TypeError(f"{option}= takes names, got {', '.join(type(name).__name__ for name in given)}.")
    return set(given)


# ------------------------------------------------------------------ names


def name_everything(trace: Trace, names: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return what each name refers to, the user's and those of variables: a var, or a variable by its number."""
    found: dict[str, dict[str, int]] = {}
    order = {id(history): number for number, history in enumerate(trace.facts.histories.values())}
    for name, value in _flat_names(names):
        if name in found:
            raise ValueError(f"names= gives the name {name!r} twice.")
        part = unwrap(value)
        if isinstance(part, VARIABLES):
            histories = histories_in(trace, part)
            if not histories:
                raise _absent(name, part, "no op read or assigned it while recording")
            for history in histories:  # several if it has a value of its own in each replica
                found[name + _part(trace, history)] = {"variable": order[id(history)]}
            continue
        if not isinstance(part, (tf.Tensor, TensorRef)):
            raise TypeError(f"names={{{name!r}: ...}} takes a tensor or a variable, got {type(value).__name__}.")
        var = trace.tensors.get(identity_of(part))
        if var is None:
            raise _absent(name, part, "it was not used in what was recorded")
        found[name] = {"var": var}
    numbers: dict[str, Iterator[str]] = {}  # for variables with the same name
    for number, history in enumerate(trace.facts.histories.values()):
        name = own = _name_of(trace, history, number)
        while name in found and found[name] != {"variable": number}:
            name = next(numbers.setdefault(own, _numbered(own)))
        found.setdefault(name, {"variable": number})
    return found


def _numbered(name: str) -> Iterator[str]:
    """Yield names for further variables with the same name: v', v'3, v'4, ..."""
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
        elif isinstance(value, DistributedValues) and not isinstance(value, VARIABLES):
            parts = values_of(value)
            several = {f"{name}{_REPLICA}{number}": part for number, part in enumerate(parts)}
            yield from _flat_names(several if len(parts) > 1 else {name: parts[0]}, prefix)
        elif isinstance(value, (list, tuple)):
            yield from _flat_names({str(number): item for number, item in enumerate(value)}, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def _name_of(trace: Trace, history: Any, number: int) -> str:
    variable = trace.variables.get(history.key)
    if variable is None:
        return f"variable_{number}"
    return trace.path_of(variable) + _part(trace, history)


def _part(trace: Trace, history: Any) -> str:
    """Return what to add to the name of a variable that has a value of its own in each replica."""
    return f"{_REPLICA}{trace.replicas[history.key]}" if history.key in trace.replicas else ""


def _mirrored_numbers(trace: Trace, flags: Mapping[int, Flags]) -> dict[int, int]:
    """Return the number of each mirrored variable among those of the same name.

    They are counted in the order in which they were created, which is the same on all workers; keys grow with it.
    """
    found: dict[int, int] = {}
    counts: Counter[str] = Counter()
    for key in sorted(key for key in trace.facts.histories if key in flags and flags[key].mirrored):
        name = trace.path_of(trace.variables[key])
        found[key] = counts[name]
        counts[name] += 1
    return found


def _variables(trace: Trace, moved: Mapping[int, int], flags: Mapping[int, Flags]) -> list[dict[str, Any]]:
    rows = []
    numbers = _mirrored_numbers(trace, flags)
    for number, history in enumerate(trace.facts.histories.values()):
        is_trainable, is_frozen, _ = flags.get(history.key, Flags(False, False, False))
        rows.append(
            {
                "name": _name_of(trace, history, number),
                "trainable": is_trainable,
                **({"frozen": True} if is_frozen else {}),
                **({"mirrored": numbers[history.key]} if history.key in numbers else {}),
                "read": history.key in trace.variables,
                "versions": list(history.versions),
                "made_by": [moved.get(index, -1) for index in history.made_by],
            }
        )
    return rows


def _host_reads(trace: Trace, moved: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return the host reads: which value, before which equation, at which frame."""
    rows = []
    times, stay = sorted(trace.facts.times), sorted(moved)
    for identity, time, frame, method, _ in trace.facts.host_reads:
        var = trace.tensors.get(identity)
        if var is not None:
            before = bisect_left(stay, bisect_left(times, time))
            rows.append({"var": var, "before": before, "frame": frame, "method": method})
    return rows


def _layers(trace: Trace, moved: Mapping[int, int]) -> list[list[Any]]:
    """Return the calls of layers: path, the first equation inside, the first one after it, the var that it returned."""
    rows: list[list[Any]] = []
    times, stay = sorted(trace.facts.times), sorted(moved)
    for call in sorted(trace.facts.layer_calls.values(), key=lambda call: call.begin):
        begin, end = (bisect_left(stay, bisect_left(times, moment)) for moment in (call.begin, call.end))
        returned = trace.tensors.get(call.returned)
        unknown = -2 if call.returned == UNCOUNTED else -1
        rows.append([call.path, begin, end, unknown if returned is None else returned])
    return rows


def _python_constants(trace: Trace, whole: Trace) -> list[list[int]]:
    """Return the constants that Python made while recording, each with the number of host reads before it."""
    moments = [read.moment for read in whole.facts.host_reads if whole.tensors.get(read.identity) is not None]
    return sorted([var, bisect_left(moments, moment)] for var, moment in python_constants(whole, trace).items())


def _opdefs(program: Program, functions: Mapping[str, Any]) -> bytes:
    names = {eqn.op for eqn in program.eqns}
    for function in functions.values():
        names |= {eqn.op for eqn in Program.parse(function["program"]).eqns}
    return core.op_list([name for name in sorted(names) if name not in OWN_OPS])
