"""Print how large the package is and how its parts depend on each other.

A **unit** is a folder or a file in the root of the package. Its `__init__.py` is none: it
names what is public, and so depends on nearly everything; the units that import it are listed apart. Nor are
`__main__.py`, which only calls the command line, and `_types.py` and `_version.py`, which are constants.

The **ranks** are the units on the longest chain of imports; the units of a cycle are one rank together. They are
counted three times: with the imports that run when a module is imported; with those inside functions too; and with
those under `TYPE_CHECKING` too, which is every import there is.

`--count-annotations` counts parameters annotated with exactly that class, or with that class `| None`.

Run: `python tools/tree_stats.py [PACKAGE] [--json] [--count-annotations NAME ...]`
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from _print import print_table

PACKAGE = Path(__file__).parents[1] / "src" / "retrotape"
KINDS = ("at import", "in functions", "for type checkers")
SIZES = ("files", "lines", "files in the root", "lines in the root", "units", "duplicates")
INIT = "__init__"
NOT_UNITS = frozenset({INIT, "__main__", "_types", "_version"})
Graph = dict[str, set[str]]  # unit: the units it imports


class Import(NamedTuple):
    """One imported name, with the kind of place that imports it."""

    name: str
    kind: str


def sources(package: Path) -> dict[Path, str]:
    """Return the text of every Python file, by its path relative to the package."""
    return {path.relative_to(package): path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}


def unit_of(path: Path) -> str:
    """Return the unit of a file.

    >>> unit_of(Path("ir/_text.py")), unit_of(Path("tape.py"))
    ('ir', 'tape')
    """
    return path.parts[0].removesuffix(".py")


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(node: ast.AST, kind: str = KINDS[0]) -> Iterator[Import]:
    """Yield what a piece of syntax imports; `from a import b` is a.b, whether that is a module or not."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, kind) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from (Import(f"{node.module}.{alias.name}", kind) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        raise ValueError(f"line {node.lineno}: relative imports are not understood; write the whole name.")
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and kind == KINDS[0]:
        kind = KINDS[1]
    elif _is_for_type_checkers(node):
        kind = KINDS[2]
    for child in ast.iter_child_nodes(node):
        yield from imports(child, kind)


def import_graph(trees: Mapping[Path, ast.Module], package: str, kinds: Collection[str]) -> Graph:
    """Return which unit imports which, looking at imports of these kinds only."""
    graph: Graph = {unit_of(path): set() for path in trees}
    for path, tree in trees.items():
        for found in imports(tree):
            top, _, rest = found.name.partition(".")
            unit = rest.partition(".")[0]
            if top == package and found.kind in kinds:
                graph[unit_of(path)].add(unit if unit in graph else INIT)
    for unit, others in graph.items():
        others.discard(unit)
    return graph


def only_units(graph: Graph) -> Graph:
    """Return the graph without the files that are no units."""
    return {unit: others - NOT_UNITS for unit, others in graph.items() if unit not in NOT_UNITS}


def cycles(graph: Graph) -> list[list[str]]:
    """Return the groups of units that import each other, directly or by way of others."""
    reached = {unit: set(others) for unit, others in graph.items()}
    for middle in graph:
        for unit in graph:
            if middle in reached[unit]:
                reached[unit] |= reached[middle]
    groups = {
        tuple(sorted(other for other in graph if unit in reached[other] and other in reached[unit])) for unit in graph
    }
    return sorted(list(group) for group in groups if group)


def ranks(graph: Graph) -> list[list[str]]:
    """Return the units in ranks: each imports from earlier ranks only, and at least one unit of the rank before it."""
    group_of = {unit: (unit,) for unit in graph} | {unit: tuple(group) for group in cycles(graph) for unit in group}
    acyclic: dict[tuple[str, ...], set[tuple[str, ...]]] = {group: set() for group in group_of.values()}
    for unit, others in graph.items():
        acyclic[group_of[unit]] |= {group_of[other] for other in others} - {group_of[unit]}
    sorter = TopologicalSorter(acyclic)
    sorter.prepare()
    found = []
    while ready := sorter.get_ready():
        found.append(sorted(unit for group in ready for unit in group))
        sorter.done(*ready)
    return found


def count_annotations(trees: Mapping[Path, ast.Module], name: str) -> int:
    """Return how many parameters are annotated with a class, `module.Class` and `Class | None` included."""
    nodes = (node for tree in trees.values() for node in ast.walk(tree))
    annotations = (node.annotation for node in nodes if isinstance(node, ast.arg) and node.annotation is not None)
    found = (ast.unparse(annotation).strip("'").removesuffix(" | None") for annotation in annotations)
    return sum(annotation.rpartition(".")[2] == name for annotation in found)


def count_duplicates(package: Path) -> int | None:
    """Return the pairs of places that a command `duplicates` counts, None if there is no such command."""
    command = shutil.which("duplicates")
    if command is None:
        return None
    done = subprocess.run([command, "--repo", package], capture_output=True, text=True, check=False)
    found = re.match(r"(\d+) pairs?|no duplicates", done.stdout)
    return int(found[1] or 0) if found else None


def stats(package: Path, annotations: list[str], largest: int = 5) -> dict[str, Any]:
    """Return all figures of a package as data."""
    texts = sources(package)
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    root = [path for path in texts if len(path.parts) == 1]
    trees = {path: ast.parse(text) for path, text in texts.items()}
    every = import_graph(trees, package.name, KINDS)
    kinds = [KINDS[:count] for count in range(1, len(KINDS) + 1)]
    graphs = {" + ".join(each): only_units(import_graph(trees, package.name, each)) for each in kinds}
    return {
        "files": len(texts),
        "lines": sum(lines.values()),
        "files in the root": len(root),
        "lines in the root": sum(lines[path] for path in root),
        "units": len(only_units(every)),
        "duplicates": count_duplicates(package),
        "largest": {str(path): lines[path] for path in sorted(lines, key=lambda path: -lines[path])[:largest]},
        "imports": {
            name: {"ranks": len(ranks(graph)), "order": ranks(graph), "cycles": cycles(graph)}
            for name, graph in graphs.items()
        },
        "units that import the package": sorted(unit for unit, others in every.items() if INIT in others),
        "annotations": {name: count_annotations(trees, name) for name in annotations},
    }


def show(found: Mapping[str, Any]) -> None:
    """Print the figures as tables."""
    figures = [(name, "-" if value is None else f"{value:,}") for name, value in found.items() if name in SIZES]
    figures += [(f"parameters annotated {name}", value) for name, value in found["annotations"].items()]
    print_table("Size", ["", "number"], figures)
    print_table("Largest files", ["file", "lines"], found["largest"].items())
    imported = [
        (kinds, each["ranks"], "; ".join(", ".join(group) for group in each["cycles"]) or "none")
        for kinds, each in found["imports"].items()
    ]
    print_table("Imports between units", ["imports counted", "ranks", "cycles"], imported)
    print("Units that import the package itself:", ", ".join(found["units that import the package"]) or "none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", type=Path, default=PACKAGE, help="the folder of a package")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--count-annotations", nargs="+", metavar="NAME", default=[], help="names of classes")
    given = parser.parse_args()
    if not (given.package / "__init__.py").is_file():
        parser.error(f"got {given.package}; expected the folder of a package, such as `src/retrotape`.")
    found = stats(given.package.resolve(), given.count_annotations)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
