"""Every private name of TensorFlow and Keras that the source uses has its line in the table that is checked."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from architecture.source import FILES, SOURCE, name, nodes, tree
from retrotape.tf import compatibility, hook_table, hooks, private_names, replicas
from retrotape.tf.compatibility import PrivateName

LINES = [*private_names.HOOKED, *private_names.CALLED, *private_names.KERAS, *private_names.FIT]
TABLE = [PrivateName.parse(line) for line in LINES]
PYTHON = {
    "_asdict",
    "_replace",
    "_getframe",
    "_current_frames",
    "_mp_context",
    "_at_fork_reinit",
    "_exit",
}  # of namedtuple, sys, ProcessPoolExecutor, locks and os
ACCESS = ("getattr", "hasattr", "setattr")


LISTED = {word for line in TABLE for word in (line.name, *line.owner.split("."))}
PAIRS = {(line.module, (line.owner or line.name).split(".")[0]) for line in TABLE}


def is_private(word: str) -> bool:
    return word == "__internal__" or (word.startswith("_") and not word.endswith("__"))


def own_attributes(source: ast.AST) -> Iterator[str]:
    """Yield the attributes that classes in a file define or assign."""
    for cls in [node for node in ast.walk(source) if isinstance(node, ast.ClassDef)]:
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


def private_uses(source: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the private attributes that a file reads or sets on anything, also by `getattr`."""
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr, node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ACCESS:
            word = node.args[1] if len(node.args) > 1 else None  # None in `getattr(*key)`, of the table of hooks
            if isinstance(word, ast.Constant) and is_private(word.value):
                yield word.value, node.lineno


MODULES = {
    alias.asname or alias.name: f"{node.module}.{alias.name}"
    for node in nodes(SOURCE / "tf" / "core.py")
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow.")
    for alias in node.names
}


def module_uses(source: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for what a file takes from private modules of TensorFlow, which come from `tf/core.py`."""
    for node in ast.walk(source):
        if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
            module = MODULES.get(dotted(node.value).removeprefix("core."))
            if module is not None:
                yield module, node.attr


def dotted(node: ast.AST) -> str:
    """Return a name with its attributes as it is written, and "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    owner = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{owner}.{node.attr}" if owner else ""


OURS = {word for path in FILES for word in own_attributes(tree(path))} | {"_retrotape"}
KNOWN = LISTED | OURS | PYTHON


def unlisted(source: ast.AST) -> list[str]:
    """Return what a piece of source takes from TensorFlow without a line in the table."""
    found = [word for word, _ in private_uses(source) if word not in KNOWN]
    return found + [f"{module}.{word}" for module, word in module_uses(source) if (module, word) not in PAIRS]


def test_every_private_name_in_the_source_has_its_line() -> None:
    assert {name(path): found for path in FILES if (found := unlisted(tree(path)))} == {}


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("context.context()._nobody_listed_this", "_nobody_listed_this"),
        ("getattr(tensor, '_nobody_listed_this', None)", "_nobody_listed_this"),
        ("tensor._nobody_listed_this = 1", "_nobody_listed_this"),
        ("execute.nobody_listed_this()", "tensorflow.python.eager.execute.nobody_listed_this"),
        ("core.record.nobody_listed_this()", "tensorflow.python.eager.record.nobody_listed_this"),
    ],
)
def test_a_new_private_name_would_be_noticed(source: str, word: str) -> None:
    assert unlisted(ast.parse(source)) == [word]


def outside_of_tf(source: ast.AST) -> list[str]:
    """Return the private names of TensorFlow and Keras that a piece of source touches: none may, but for `tf/`."""
    listed = {word for word in LISTED if is_private(word)}
    own = {node for node in ast.walk(source) if isinstance(node, ast.Attribute) and _is_own(node)}
    uses = [(node.attr, node) for node in ast.walk(source) if isinstance(node, ast.Attribute) and is_private(node.attr)]
    found = [word for word, node in uses if node not in own and (word in listed or word not in OURS | PYTHON)]
    attributes = {word for word, _ in uses}
    return found + [word for word, _ in private_uses(source) if word not in attributes and word not in OURS | PYTHON]


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def test_private_names_are_touched_in_one_folder_only() -> None:
    outside = [path for path in FILES if path.parent.name != "tf"]
    assert {name(path): found for path in outside if (found := outside_of_tf(tree(path)))} == {}


@pytest.mark.parametrize(
    "source",
    ["tensor._id", "keras_variable._value", "getattr(variable, '_shared_name')", "tf.__internal__.x", "x._new_in_tf"],
)
def test_a_private_name_outside_of_the_folder_would_be_noticed(source: str) -> None:
    assert len(outside_of_tf(ast.parse(source))) == 1
    assert outside_of_tf(ast.parse("self._id")) == []


def test_no_line_of_the_table_is_left_over() -> None:
    files = [path for path in FILES if path.name not in ("private_names.py", "compatibility.py")]
    written = [node for path in files for node in nodes(path)]
    used = {node.attr for node in written if isinstance(node, ast.Attribute)}
    used |= {node.value for node in written if isinstance(node, ast.Constant)} | {"recompute_grad"}  # a prefix there
    assert [str(line) for line in TABLE if line.name not in used] == []


def test_every_line_gives_its_reason_and_none_is_there_twice() -> None:
    names = [str(line) for line in TABLE]
    assert len(set(names)) == len(names)
    tables = private_names.HOOKED, private_names.CALLED, private_names.KERAS, private_names.FIT
    assert all(reason for table in tables for reason in table.values())


def test_every_hook_is_in_the_table_of_hooks() -> None:
    assert {hooks, replicas}  # which add theirs when they are imported; those of Keras come with the first tape
    names = [PrivateName.parse(line) for line in private_names.HOOKED]
    places = {(compatibility.owner_of(line), line.name) for line in names}
    of_keras = {hook.key for hook in hook_table.hooks if "keras" in getattr(hook.key[0], "__module__", "")}
    hooked = {hook.key for hook in hook_table.hooks} - of_keras
    assert places == hooked
