"""Small faults that a program may have: each a change of one expression or statement of a file.

Messages, docstrings, annotations, assertions and what only type checkers see stay as they are: what is changed there
changes nothing that a test should find.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_PAIRS = [
    ("comparison", ast.Lt, ast.LtE),
    ("comparison", ast.Gt, ast.GtE),
    ("comparison", ast.Eq, ast.NotEq),
    ("comparison", ast.Is, ast.IsNot),
    ("comparison", ast.In, ast.NotIn),
    ("arithmetic", ast.Add, ast.Sub),
    ("arithmetic", ast.Mult, ast.FloorDiv),
    ("arithmetic", ast.Mod, ast.Div),
    ("arithmetic", ast.Pow, ast.Mult),
    ("arithmetic", ast.BitAnd, ast.BitOr),
    ("arithmetic", ast.BitXor, ast.BitAnd),
    ("arithmetic", ast.LShift, ast.RShift),
    ("boolean", ast.And, ast.Or),
]
SWAPPED: dict[type, tuple[str, type]] = {
    **{new: (kind, old) for kind, old, new in reversed(_PAIRS)},
    **{old: (kind, new) for kind, old, new in _PAIRS},
}
_TEXTS = ("Error", "warn", "cast", "TypeVar", "getLogger")  # what is called with messages and types
_SHOWN = ("__repr__", "__str__", "__all__")


class Mutant(NamedTuple):
    """A change of the bytes `start` to `end` of a file.

    Who reaches one of the `lines` reaches the statement; without lines it runs when the file is imported.
    """

    id: str
    file: str
    line: int
    lines: range
    function: str
    kind: str
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: str) -> str:
        """Return the source with the change."""
        raw = source.encode()
        return (raw[: self.start] + self.new.encode() + raw[self.end :]).decode()


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _without(node: ast.AST, field: str) -> ast.AST:
    """Return a call without the last of its arguments in a field."""
    changed = copy.copy(node)
    setattr(changed, field, getattr(node, field)[:-1])
    return changed


def _with_operator(node: Any, operator: type) -> ast.AST:
    changed = copy.copy(node)
    if isinstance(node, ast.Compare):
        changed.ops = [operator(), *node.ops[1:]]
    else:
        changed.op = operator()
    return changed


def _faults(node: Any) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield each fault that a node may have: its kind, what is replaced, by what."""
    if isinstance(node, (ast.Compare, ast.BinOp, ast.BoolOp, ast.AugAssign)):
        operator = type(node.ops[0] if isinstance(node, ast.Compare) else node.op)
        if operator in SWAPPED:
            kind, other = SWAPPED[operator]
            yield kind, node, _with_operator(node, other)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield "not removed" if isinstance(node.op, ast.Not) else "arithmetic", node, node.operand
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield "condition negated", node.test, ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield "condition negated", test, ast.UnaryOp(ast.Not(), test)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        changed = not node.value if isinstance(node.value, bool) else node.value + 1
        yield "constant", node, ast.Constant(changed)
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "return value dropped", node, ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Call) and not isinstance(node.func, ast.Call):
        if node.keywords:
            yield "argument dropped", node, _without(node, "keywords")
        if len(node.args) > 1:
            yield "argument dropped", node, _without(node, "args")
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield "jump swapped", node, ast.Continue() if isinstance(node, ast.Break) else ast.Break()
    if isinstance(node, (ast.AugAssign, ast.Raise, ast.Delete, ast.Expr)) or (
        isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple))
    ):
        yield "statement deleted", node, ast.Pass()


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, (ast.If, ast.IfExp)):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return _name(target) in _SHOWN
    if isinstance(node, ast.Call):
        return _name(node.func).endswith(_TEXTS)
    if isinstance(node, ast.FunctionDef):
        return node.name in _SHOWN or any(
            _name(each).startswith(("overload", "abstract")) for each in node.decorator_list
        )
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, (ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr))


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.Lambda))


class _Place(NamedTuple):
    function: str = ""
    runs_at_import: bool = True
    lines: range = range(0)  # of the statement, or of its head


def _nodes(node: ast.AST, place: _Place) -> Iterator[tuple[_Place, ast.AST]]:
    """Yield the nodes that may be changed, each with its place."""
    if _is_left_alone(node):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        place = place._replace(function=f"{place.function}.{node.name}".strip("."))
    if isinstance(node, ast.stmt) and not place.runs_at_import:
        body = getattr(node, "body", None)
        end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
        place = place._replace(lines=range(node.lineno, max(end, node.lineno + 1)))
    yield place, node
    for field, value in ast.iter_fields(node):
        inner = place._replace(runs_at_import=place.runs_at_import and not (field == "body" and _is_function(node)))
        is_type = field in ("annotation", "returns", "decorator_list") or (
            isinstance(node, ast.Raise) and field == "exc"
        )
        is_alias = place.runs_at_import and isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)
        if not is_type and not is_alias:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes(child, inner)


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Return all mutants of a file. The id of one stays the same while its function does."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found, seen = [], defaultdict[str, int](int)
    for place, node in _nodes(ast.parse(source), _Place()):
        for kind, old, new in _faults(node):
            shown, text = ast.unparse(old), ast.unparse(ast.fix_missing_locations(new))
            text = f"({text})" if isinstance(new, ast.expr) else text
            label = f"{file} {place.function} {kind} {shown} {text}"
            seen[label] += 1
            name = hashlib.sha1(f"{label} {seen[label]}".encode()).hexdigest()[:8]
            start, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
            at = (name, file, old.lineno, place.lines, place.function)
            found.append(Mutant(*at, kind, start, end, shown, text))
    return found


def pick(sources: Mapping[str, Mapping[str, str]], count: int, seed: str) -> list[Mutant]:
    """Return as many mutants from each folder, in each as many of each kind, in an order that the seed chooses.

    Args:
      sources: By folder, the texts of its files by their names.
      count: How many.
      seed: Another one chooses others; a file that changes does not change what is chosen from the others' functions.
    """

    def order(mutant: Mutant) -> str:
        return hashlib.sha1(f"{seed} {mutant.id}".encode()).hexdigest()

    def turns(mutants: Iterable[Mutant]) -> list[Mutant]:
        kinds = defaultdict[str, list[Mutant]](list)
        for mutant in sorted(mutants, key=order):
            kinds[mutant.kind].append(mutant)
        ranked = [(rank, order(mutant), mutant) for kind in kinds.values() for rank, mutant in enumerate(kind)]
        return [mutant for _, _, mutant in sorted(ranked)]

    queues = [turns(each for file in files for each in mutants_of(file, files[file])) for files in sources.values()]
    share = -(-count // max(1, len(queues)))
    return sorted((mutant for queue in queues for mutant in queue[:share]), key=order)
