"""What `retrotape diff` has found, as JSON and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retrotape.cli._distance import Distance
from retrotape.cli._pairing import Pairing
from retrotape.cli._suspects import Pair
from retrotape.cli._tape import SavedTape
from retrotape.cli._text import count, printable, show_lines, table

if TYPE_CHECKING:
    from retrotape.cli._rerun import Step

Distances = Mapping[Pair, "Distance | None"]
_NUMBERS = ("max abs", "max rel", "elements")


def describe(
    first: SavedTape, second: SavedTape, pairing: Pairing, distances: Distances, steps: list[Step]
) -> dict[str, Any]:
    """Return what differs, as JSON."""
    beyond = {pair: apart for pair, apart in distances.items() if apart is not None and apart.beyond}
    leaves = [pair for pair in pairing.leaves if pair in beyond]
    origin = next((step for step in steps if not step.differing), None)
    return {
        "first": first.container.path,
        "second": second.container.path,
        "same": pairing.parting is None and not beyond,
        "equations": pairing.common,
        "unknown": [_value(first, a) for a, b in pairing.leaves if distances.get((a, b), 0) is None],
        "program": _parting(first, second, pairing, beyond),
        "leaves": [{**_value(first, a), **beyond[a, b].as_json()} for a, b in leaves],
        "step": _step(first, second, steps[0]) if steps else None,
        "origin": _step(first, second, origin) if origin else None,
        "names": _names(first, second, beyond),
    }


def _value(tape: SavedTape, var: int) -> dict[str, Any]:
    return {"var": var, "name": tape.called.get(var), "type": str(tape.type_of(var))}


def _equation(tape: SavedTape, index: int) -> dict[str, Any] | None:
    if index >= len(tape.program.eqns):
        return None
    eqn = tape.program.eqns[index]
    place = tape.program.frames[eqn.frame]
    where = {"file": place.file, "line": place.line, "function": place.function}
    return {"equation": index, "op": eqn.op, "text": tape.lines[index], "where": where}


def _parting(first: SavedTape, second: SavedTape, pairing: Pairing, beyond: Distances) -> dict[str, Any] | None:
    """Return where the programs part, and what Python had looked at before."""
    if pairing.parting is None:
        return None
    index = pairing.parting.equation
    both = {"first": _equation(first, index), "second": _equation(second, index)}
    differing = {a for a, _ in beyond}
    looks = [row for row in first.fields["host_reads"] if row["before"] <= index and row["var"] in differing]
    look = None
    if looks:
        place = first.program.frames[looks[-1]["frame"]]
        how = str(looks[-1].get("how")).strip("_")
        look = {**_value(first, looks[-1]["var"]), "how": how, "where": {"file": place.file, "line": place.line}}
    return {"equation": index, "reason": pairing.parting.reason, **both, "look": look}


def _step(first: SavedTape, second: SavedTape, step: Step) -> dict[str, Any]:
    eqn = first.program.eqns[step.equation]
    outputs = [
        {**_value(first, var), **apart.as_json()} for var, apart in zip(eqn.outputs, step.outputs, strict=True) if apart
    ]
    return {
        **(_equation(first, step.equation) or {}),
        "second": _equation(second, step.equation),
        "outputs": outputs,
        "inputs": [_value(first, var) for var in step.differing],
    }


def _names(first: SavedTape, second: SavedTape, beyond: Distances) -> list[dict[str, Any]]:
    others = {named.name: named.var for named in second.names}
    pairs = [(named, (named.var, others.get(named.name, -1))) for named in first.names]
    return [
        {"name": named.name, "kind": first.kind(named), **apart.as_json()}
        for named, pair in pairs
        if (apart := beyond.get(pair)) is not None
    ]


# ------------------------------------------------------------------ for people


def show(about: dict[str, Any]) -> None:
    """Print what differs."""
    parting, step, origin = about["program"], about["step"], about["origin"]
    lines: list[Any] = []
    if parting is None:
        lines.append(f"The programs are the same: {count(about['equations'], 'equation')}.")
    else:
        lines += _told_parting(about, parting)
    if about["unknown"]:
        lines.append(f"Not compared, since a tape does not have the value: {', '.join(map(_name, about['unknown']))}.")
    if about["leaves"]:
        lines += ["What they start from differs:", _distances(about["leaves"])]
    if origin is not None:
        lines += [f"With the same inputs, {_told(origin)} gives something else:", *_details(origin)]
    if step is not None and step != origin:
        lines += [f"The first value that differs is that of {_told(step)}:", *_details(step)]
    if about["names"] and step is not None:
        lines += ["Of what has a name, these differ:", _distances(about["names"])]
    if about["same"]:
        lines.append("No value differs." if about["unknown"] else "Their values are the same.")
    show_lines(*lines)


def _told_parting(about: dict[str, Any], parting: dict[str, Any]) -> list[str]:
    lines = [f"The programs part at equation {parting['equation']}: {printable(parting['reason'])}."]
    for key in ("first", "second"):
        eqn = parting[key]
        told = "has ended" if eqn is None else f"{printable(eqn['text'])}  # {_where(eqn['where'])}"
        lines.append(f"  {printable(about[key])}: {told}")
    look = parting["look"]
    if look is not None:
        seen = f"{_name(look)} ({printable(look['how'])}) at {_where(look['where'])}"
        lines.append(f"Before that, Python looked at {seen}, which differs.")
    return lines


def _told(step: dict[str, Any]) -> str:
    return f"equation {step['equation']}, {printable(step['op'])} at {_where(step['where'])}"


def _details(step: dict[str, Any]) -> list[str]:
    apart = [f"  {_name(row)}: {_told_distance(row)}" for row in step["outputs"] if row["beyond"]]
    lines = [f"  {printable(step['text'])}", *apart]
    if step["inputs"]:
        lines.append(f"  because of {', '.join(map(_name, step['inputs'][:8]))}")
    return lines


def _where(where: dict[str, Any]) -> str:
    return f"{printable(where['file'])}:{where['line']}"


def _name(row: dict[str, Any]) -> str:
    return f"{printable(row['name'])} (%{row['var']})" if row["name"] else f"%{row['var']}"


def _short(value: float | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else value


def _told_distance(row: dict[str, Any]) -> str:
    return f"max abs {_short(row['max_abs'])}, max rel {_short(row['max_rel'])}, {_elements(row)} elements"


def _elements(row: dict[str, Any]) -> str:
    return f"{row['elements']:,} of {row['size']:,}"


def _distances(rows: list[dict[str, Any]]) -> Any:
    cells = [
        (
            row["name"] or f"%{row['var']}",
            row.get("type") or row["kind"],
            _short(row["max_abs"]),
            _short(row["max_rel"]),
            _elements(row),
        )
        for row in rows
    ]
    return table(("name", "what", *_NUMBERS), cells, numbers=_NUMBERS)
