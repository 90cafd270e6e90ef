"""Examples, loaded and run: each takes seconds, so one file of tests runs it and has all that looks at its run."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest

from helpers.processes import PYTHON

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


def run_in(file: str | Path) -> list[str]:
    """Return the examples that a file of tests runs."""
    text = Path(file).read_text()
    return [name for name in NAMES if f'run("{name}")' in text]


@functools.cache  # several tests look at one run
def run(name: str) -> Ran:
    """Run an example, which has to show something."""
    module, printed = load(name), io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.object(sys, "executable", PYTHON):
        numbers = module.main()
    assert numbers
    assert 1 <= len(printed.getvalue().splitlines()) <= 12
    assert not re.search(r"\bnan\b", printed.getvalue())
    return Ran(module, numbers, printed.getvalue())


def assert_picture(name: str, folder: Path) -> None:
    """Draw what an example computed, and look at it."""
    pytest.importorskip("matplotlib")
    example, numbers, _ = run(name)
    load("_picture").save(example.draw, numbers, folder / "new" / "it.png")
    assert_whole_picture(folder / "new" / "it.png")


def assert_whole_picture(path: Path) -> None:
    """Hold that a PNG shows more than axes and letters, which are black, and that nothing runs over its edge."""
    image = pytest.importorskip("matplotlib.image").imread(path)[:, :, :3]
    colors = np.round(image * 255.0).astype(int) @ [1, 256, 65536]
    assert len(np.unique(colors)) > 200, "blank"
    assert (image.max(axis=2) > image.min(axis=2)).mean() > 0.005, "blank"
    edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert edge.min() == 1.0, "cut off"
