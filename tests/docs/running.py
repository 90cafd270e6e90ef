"""Examples, loaded and run."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
PICTURES = [name for name in NAMES if "\ndef draw(" in (FOLDER / f"{name}.py").read_text()]


class Ran(NamedTuple):
    """An example after its `main` returned."""

    module: ModuleType
    numbers: dict[str, Any]
    printed: str


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache  # several tests look at one run
def run(name: str) -> Ran:
    module, printed = load(name), io.StringIO()
    with contextlib.redirect_stdout(printed):
        numbers = module.main()
    return Ran(module, numbers, printed.getvalue())
