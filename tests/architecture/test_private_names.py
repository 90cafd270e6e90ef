"""Every private name of TensorFlow and Keras that the source uses has its line in the table that is checked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import retrotape
from retrotape.tf import compatibility, hook_table, hooks, private_names, replicas
from retrotape.tf.compatibility import PrivateName

SOURCE = Path(retrotape.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
LINES = [*private_names.HOOKED, *private_names.CALLED, *private_names.KERAS, *private_names.FIT]
TABLE = [PrivateName.parse(line) for line in LINES]
PYTHON = {
    "_asdict",
    "_replace",
    "_getframe",
    "_current_frames",
    "_mp_context",
}  # of namedtuple, sys and ProcessPoolExecutor
ACCESS = ("getattr", "hasattr", "setattr")


def words(name: PrivateName) -> set[str]:
    return {name.name, *name.owner.split(".")}


def is_private(name: str) -> bool:
    return name == "__internal__" or (name.startswith("_") and not name.endswith("__"))


def own_attributes(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes that classes in a file define or assign."""
    for cls in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
        for node in ast.walk(cls):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                    yield node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                yield node.value  # __slots__


def private_uses(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the private attributes that a file reads or sets on anything, also by `getattr`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ACCESS:
            name = node.args[1] if len(node.args) > 1 else None  # None in `getattr(*key)`, of the table of hooks
            if isinstance(name, ast.Constant) and is_private(name.value):
                yield name.value, node.lineno


def module_uses(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for what a file takes from private modules of TensorFlow, which come from `tf/core.py`."""
    modules = {}
    for node in ast.walk(ast.parse((SOURCE / "tf" / "core.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow."):
            modules.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
            module = modules.get(ast.unparse(node.value).removeprefix("core."))
            if module is not None:
                yield module, node.attr


OURS = {name for path in FILES for name in own_attributes(ast.parse(path.read_text()))} | {"_retrotape"}


def unlisted(source: str) -> list[str]:
    """Return what a piece of source takes from TensorFlow without a line in the table."""
    tree = ast.parse(source)
    listed = {word for name in TABLE for word in words(name)}
    found = [name for name, _ in private_uses(tree) if name not in listed | OURS | PYTHON]
    pairs = {(name.module, (name.owner or name.name).split(".")[0]) for name in TABLE}
    return found + [f"{module}.{name}" for module, name in module_uses(tree) if (module, name) not in pairs]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_private_name_in_the_source_has_its_line(path: Path) -> None:
    assert unlisted(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("context.context()._nobody_listed_this", "_nobody_listed_this"),
        ("getattr(tensor, '_nobody_listed_this', None)", "_nobody_listed_this"),
        ("tensor._nobody_listed_this = 1", "_nobody_listed_this"),
        ("execute.nobody_listed_this()", "tensorflow.python.eager.execute.nobody_listed_this"),
        ("core.record.nobody_listed_this()", "tensorflow.python.eager.record.nobody_listed_this"),
    ],
)
def test_a_new_private_name_would_be_noticed(source: str, name: str) -> None:
    assert unlisted(source) == [name]


def outside_of_tf(source: str) -> list[str]:
    """Return the private names of TensorFlow and Keras that a piece of source touches: none may, but for `tf/`."""
    tree = ast.parse(source)
    listed = {word for name in TABLE for word in words(name) if is_private(word)}
    own = {node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_own(node)}
    uses = [(node.attr, node) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)]
    found = [name for name, node in uses if node not in own and (name in listed or name not in OURS | PYTHON)]
    attributes = {name for name, _ in uses}
    return found + [name for name, _ in private_uses(tree) if name not in attributes and name not in OURS | PYTHON]


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent.name != "tf"], ids=lambda path: str(path.relative_to(SOURCE))
)
def test_private_names_are_touched_in_one_folder_only(path: Path) -> None:
    assert outside_of_tf(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    ["tensor._id", "keras_variable._value", "getattr(variable, '_shared_name')", "tf.__internal__.x", "x._new_in_tf"],
)
def test_a_private_name_outside_of_the_folder_would_be_noticed(source: str) -> None:
    assert len(outside_of_tf(source)) == 1
    assert outside_of_tf("self._id") == []


def test_no_line_of_the_table_is_left_over() -> None:
    files = [path for path in FILES if path.name not in ("private_names.py", "compatibility.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {node.value for node in nodes if isinstance(node, ast.Constant)} | {"recompute_grad"}  # a prefix there
    assert [str(name) for name in TABLE if name.name not in used] == []


def test_every_line_gives_its_reason_and_none_is_there_twice() -> None:
    names = [str(name) for name in TABLE]
    assert len(set(names)) == len(names)
    tables = private_names.HOOKED, private_names.CALLED, private_names.KERAS, private_names.FIT
    assert all(reason for table in tables for reason in table.values())


def test_every_hook_is_in_the_table_of_hooks() -> None:
    assert {hooks, replicas}  # which add theirs when they are imported; those of Keras come with the first tape
    names = [PrivateName.parse(line) for line in private_names.HOOKED]
    places = {(compatibility.owner_of(name), name.name) for name in names}
    of_keras = {hook.key for hook in hook_table.hooks if "keras" in getattr(hook.key[0], "__module__", "")}
    hooked = {hook.key for hook in hook_table.hooks} - of_keras
    assert places == hooked
