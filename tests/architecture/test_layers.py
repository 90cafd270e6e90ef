from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import retrotape
from architecture.source import FILES, SOURCE, name, nodes, text, tree
from retrotape import errors

LIMIT = 350

# Each may import those before it, and itself; names in one row do not import each other.
LAYERS = [
    {"ir", "tf"},
    {"rules", "grads"},
    {"record"},
    {"execute", "aggregate"},
    {"transform"},
    {"diagnose", "lower"},
    {"query", "files", "playback", "logs", "report"},
    {"tape"},
    {"distribute", "callbacks"},
    {"cli"},
]
BASE = {
    "errors",
    "io",
    "python",
    "_html",
    "_locks",
    "_types",
    "_version",
}  # import nothing of the package but each other; anyone may import them
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PLAIN = ("errors", "io", "ir", "_html", "_locks", "_types", "_version")  # the standard library only

# Public names that are understood without an example, each with the reason.
NO_EXAMPLE = {
    "config.__enter__": "the class shows it",
    "config.__exit__": "the class shows it",
    "Memory": "a result; `Tape.memory` makes it",
    "Accumulated": "a result; `accumulate` makes it",
    "JoinedTape": "a result; `join` makes it",
    "LoadedTape": "a result; `load` makes it",
    "IsolatedTape": "a result; `load` makes it",
    "Confinement": "a result; `IsolatedTape.confinement` is one",
    "Tape.export_graph": "what it writes is looked at in TensorBoard",
    "Tape.export_saved_model": "takes seconds",
    "Cause": "a list of sentences; `Tape.first_nonfinite` shows one",
    "Report": "a result; `Tape.report` makes it",
    "Summary": "a result; `Tape.summary` makes it",
    "Tensors": "a result; `Tape.tensors` makes it",
    "Nonfinite": "a result; `Tape.first_nonfinite` makes it",
    "Tape.__enter__": "the class shows it",
    "Tape.watch": "there is no need to call it",
    "Tape.reset": "one call without argument or result",
    "Tape.watched_variables": "as in TensorFlow",
    "Tape.program": "its print depends on the version of TensorFlow",
    "Tape.memory": "its print names files and lines",
}


def unit(path: Path) -> str:
    """Return the name in LAYERS that a file belongs to; "" for the door itself."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "" if first in ("__init__", "__main__") else first


def imports(path: Path) -> list[tuple[str, int]]:
    """Return every module that a file imports, with the line, also inside functions."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append((node.module or "", node.lineno))
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def wrong_direction(path: Path) -> list[str]:
    """Return the imports of a file that do not point to an earlier layer."""
    wrong = []
    own = unit(path)
    for module, line in imports(path):
        parts = module.split(".")
        if parts[0] != "retrotape" or len(parts) < 2 or not own:
            continue
        other = parts[1]
        if other in RANK and other != own and RANK[other] >= RANK[own]:
            wrong.append(f"{path.relative_to(SOURCE)}:{line}: {own} imports {other}")
    return wrong


def test_there_are_ten_ranks_at_most():
    assert len(LAYERS) <= 10


def test_every_file_belongs_to_a_layer():
    assert [name(path) for path in FILES if unit(path) not in {"", *RANK, *BASE}] == []


def test_the_base_imports_nothing_else_of_the_package():
    files = [path for path in FILES if unit(path) in BASE]
    assert {unit(path) for path in files} == BASE
    ours = [
        (name(path), module)
        for path in files
        for module, _ in imports(path)
        if module.startswith("retrotape.") and module.split(".")[1] not in BASE
    ]
    assert ours == []


def test_imports_point_one_way():
    assert [wrong for path in FILES for wrong in wrong_direction(path)] == []


def test_an_import_against_the_direction_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    folder = tmp_path / "ir"
    folder.mkdir()
    bad = folder / "_bad.py"
    bad.write_text("def f():\n    from retrotape.tape import live\n    from retrotape import record\n")
    assert wrong_direction(bad) == ["ir/_bad.py:2: ir imports tape"] * 2 + ["ir/_bad.py:3: ir imports record"]


def private_of_others(path: Path) -> list[str]:
    """Return the imports of a file that take a private file of a folder that it does not lie in."""
    wrong = []
    for module, line in imports(path):
        parts = module.split(".")
        private = next((at for at, part in enumerate(parts) if part.startswith("_") and at > 1), 0)
        folder = SOURCE.joinpath(*parts[1:private])
        if parts[0] == "retrotape" and private and folder.is_dir() and folder not in path.parents:
            wrong.append(f"{name(path)}:{line} imports {module}")
    return wrong


def test_private_files_of_a_folder_are_imported_only_there():
    assert [wrong for path in FILES for wrong in private_of_others(path)] == []


def test_only_one_file_imports_what_is_private_in_tensorflow():
    touched = {name(path) for path in FILES for module, _ in imports(path) if module.startswith("tensorflow.python")}
    assert touched == {"tf/core.py"}


def test_the_plain_layers_use_the_standard_library_only():
    allowed = {"retrotape", "__future__", *sys.stdlib_module_names}
    wrong = [
        f"{name(path)}:{line}: {module}"
        for path in FILES
        if unit(path) in PLAIN
        for module, line in imports(path)
        if module.partition(".")[0] not in allowed
    ]
    assert wrong == []


def test_no_file_is_too_long():
    assert [name(path) for path in FILES if len(text(path).splitlines()) > LIMIT] == []


def test_every_file_says_what_it_is():
    assert [name(path) for path in FILES if not ast.get_docstring(tree(path))] == []


# ------------------------------------------------------------------ the public names


def door() -> ast.Module:
    return tree(SOURCE / "__init__.py")


def for_type_checkers() -> dict[str, str]:
    """Return {name: module} of the block that only type checkers read."""
    (block,) = [
        node
        for node in door().body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "`x as x` says that the name is public"
            is_module = node.module in ("retrotape", "retrotape.distribute", "retrotape.files", "retrotape.tape")
            home = f"{node.module}.{alias.name}" if is_module else node.module
            found[alias.name] = home
    return found


def test_the_door_agrees_with_itself():
    assert for_type_checkers() == retrotape._HOMES
    assert set(retrotape.__all__) == set(retrotape._HOMES) | {"__version__"}
    assert list(retrotape.__all__) == sorted(retrotape.__all__)


def test_every_public_name_is_there_and_documented():
    values = {public: getattr(retrotape, public) for public in retrotape.__all__}
    assert [key for key, value in values.items() if not (isinstance(value, str) or inspect.getdoc(value))] == []


def test_the_old_name_is_the_same_class():
    assert retrotape.GradientTape is retrotape.Tape


def with_examples() -> dict[str, object]:
    """Return every public class, function and method by name."""
    found: dict[str, object] = {}
    for public in retrotape.__all__:
        value = getattr(retrotape, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            found.setdefault(value.__name__, value)
    for cls in [value for value in found.values() if inspect.isclass(value)]:
        own = [base for base in cls.__mro__ if base.__module__.startswith("retrotape")]
        for key, member in [item for base in reversed(own) for item in vars(base).items()]:
            member = getattr(member, "__func__", member)
            public = not key.startswith("_") or key in ("__enter__", "__exit__")
            if public and (inspect.isfunction(member) or isinstance(member, property)):
                found[f"{cls.__name__}.{key}"] = member
    return found


def test_every_public_name_has_a_docstring_and_an_example():
    docs = {public: inspect.getdoc(value) or "" for public, value in with_examples().items()}
    assert [public for public, doc in docs.items() if not doc] == []
    shown = [public for public in docs if public.split(".")[0] in ("Tape", "Memory") and public not in NO_EXAMPLE]
    assert shown
    assert [public for public in shown if ">>>" not in docs[public]] == []


def test_no_exemption_is_left_over():
    names = with_examples()
    for public in NO_EXAMPLE:
        assert public in names, f"{public} does not exist"
        assert ">>>" not in (inspect.getdoc(names[public]) or ""), f"{public} has an example by now"


def test_every_error_is_documented():
    for key, value in vars(errors).items():
        if inspect.isclass(value) and value.__module__ == errors.__name__:
            assert value.__doc__, key


def test_the_page_names_the_layers_in_their_order():
    page = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text()
    drawn = page[page.index("ir, tf | rules") :].split("```")[0]
    ranks = [set(part.replace("\n", " ").replace(" ", "").split(",")) for part in drawn.split("|")]
    assert ranks == LAYERS
