"""The result of `retrotape diff`, as JSON and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from retrotape.cli._diff_align import Alignment, Pair
from retrotape.cli._tape import SavedTape
from retrotape.cli._text import count, number, sanitize, show_lines, table

if TYPE_CHECKING:
    from retrotape.cli._diff_values import Distance

    Distances = Mapping[Pair, Distance | None]

Json = dict[str, Any]
_NUMBERS = ("max abs", "max rel", "elements")


def describe(
    first: SavedTape, second: SavedTape, alignment: Alignment, unknown: list[Pair], distances: Distances
) -> Json:
    """Return what differs, as JSON."""
    found = {pair: _numbers(distance) for pair, distance in distances.items() if distance is not None}
    beyond = {pair for pair, numbers in found.items() if numbers["beyond"]}
    steps = [index for index, (_, outputs) in enumerate(alignment.eqns) if not beyond.isdisjoint(outputs)]
    origins = [index for index in steps if beyond.isdisjoint(alignment.eqns[index][0])]
    others = {named.name: named.var for named in second.names}
    names = [(named, (named.var, others.get(named.name, -1))) for named in first.names]

    def step(index: int) -> Json:
        inputs, outputs = alignment.eqns[index]
        return {
            **(_equation(first, index) or {}),
            "second": _equation(second, index),
            "outputs": [_value(first, pair[0]) | found[pair] for pair in outputs if pair in found],
            "inputs": [_value(first, pair[0]) for pair in inputs if pair in beyond],
        }

    return {
        "first": first.path,
        "second": second.path,
        "same": not alignment.reason and not beyond,
        "equations": len(alignment.eqns),
        "unknown": [_value(first, var) for var, _ in unknown],
        "program": _parting(first, second, alignment, {var for var, _ in beyond}) if alignment.reason else None,
        "leaves": [_value(first, pair[0]) | found[pair] for pair in alignment.leaves if pair in beyond],
        "step": step(steps[0]) if steps else None,
        "origin": step(origins[0]) if origins else None,
        "names": [{"name": one.name, "kind": first.kind(one)} | found[pair] for one, pair in names if pair in beyond],
    }


def _parting(first: SavedTape, second: SavedTape, alignment: Alignment, differing: set[int]) -> Json:
    """Return where the programs diverge, and the last differing value that Python read before that."""
    index = len(alignment.eqns)
    reads = [read for read in first.checked.host_reads if read.before <= index and read.var in differing]
    host_read = None
    for var, _, frame, method in reads[-1:]:
        file, line, _ = first.program.frames[frame]
        host_read = _value(first, var) | {"method": method.strip("_"), "where": {"file": file, "line": line}}
    both = {"first": _equation(first, index), "second": _equation(second, index)}
    return {"equation": index, "reason": alignment.reason, **both, "host_read": host_read}


def _numbers(distance: Distance) -> Json:
    return {key: number(value) for key, value in distance._asdict().items()}


def _value(tape: SavedTape, var: int) -> Json:
    return {"var": var, "name": tape.var_names.get(var), "type": str(tape.type_of(var))}


def _equation(tape: SavedTape, index: int) -> Json | None:
    if index >= len(tape.program.eqns):
        return None
    eqn = tape.program.eqns[index]
    where = tape.program.frame_of(eqn)._asdict()
    return {"equation": index, "op": eqn.op, "text": tape.lines[index], "where": where}


def show(about: Json) -> None:
    """Print what differs."""
    show_lines(*_lines(sanitize(about), _table))


def sentences(about: Json) -> list[tuple[str, list[str]]]:
    """Return what differs as sentences, each with its details."""
    found: list[tuple[str, list[str]]] = []
    for line in _lines(sanitize(about), _in_words):
        if isinstance(line, list):
            found[-1][1].extend(line)
        elif line.startswith("  "):
            found[-1][1].append(line.strip())
        else:
            found.append((line, []))
    return found


def _lines(about: Json, table_of: Callable[[list[Json]], Any]) -> Iterator[Any]:
    program, step, origin = about["program"], about["step"], about["origin"]
    if program is None:
        yield f"The programs are the same: {count(about['equations'], 'equation')}."
    else:
        yield f"The programs diverge at equation {program['equation']}: {program['reason']}."
        for key in ("first", "second"):
            eqn = program[key]
            yield f"  {about[key]}: {'has ended' if eqn is None else eqn['text'] + '  # ' + _where(eqn)}"
        if (read := program["host_read"]) is not None:
            yield f"Before that, Python read {_name(read)} ({read['method']}) at {_where(read)}, which differs."
    if about["unknown"]:
        yield f"Not compared, because a tape does not have the value: {', '.join(map(_name, about['unknown']))}."
    if about["leaves"]:
        yield from ("Their inputs differ:", table_of(about["leaves"]))
    if origin is not None:
        yield from _step_lines("With the same inputs, {} gives something else:", origin)
    if step is not None and step != origin:
        yield from _step_lines("The first value that differs is that of {}:", step)
    if about["names"] and step is not None:
        yield from ("Named values that differ:", table_of(about["names"]))
    if about["same"]:
        yield "No value differs." if about["unknown"] else "Their values are the same."


def _step_lines(title: str, step: Json) -> Iterator[str]:
    yield title.format(f"equation {step['equation']}, {step['op']} at {_where(step)}")
    yield f"  {step['text']}"
    for row in step["outputs"]:
        if row["beyond"]:
            yield f"  {_distance(_name(row), row)}"
    if step["inputs"]:
        yield f"  because of {', '.join(map(_name, step['inputs'][:8]))}"


def _distance(name: str, row: Json) -> str:
    return "{}: max abs {}, max rel {}, {} elements".format(name, *_cells(row))


def _in_words(rows: list[Json]) -> list[str]:
    return [_distance(row["name"] or f"%{row['var']}", row) for row in rows]


def _where(row: Json) -> str:
    return f"{row['where']['file']}:{row['where']['line']}"


def _name(row: Json) -> str:
    return f"{row['name']} (%{row['var']})" if row["name"] else f"%{row['var']}"


def _cells(row: Json) -> list[str]:
    shares = [f"{value:.3g}" if isinstance(value, float) else value for value in (row["max_abs"], row["max_rel"])]
    return [*shares, f"{row['elements']:,} of {row['size']:,}"]


def _table(rows: list[Json]) -> Any:
    cells = [(row["name"] or f"%{row['var']}", row.get("type") or row["kind"], *_cells(row)) for row in rows]
    return table(("name", "what", *_NUMBERS), cells, numbers=_NUMBERS)
