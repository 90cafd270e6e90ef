from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from distribute.making import plain_sum, save_tapes

CHUNK = 4


@pytest.fixture(autouse=True)
def quick(quick_processes) -> None:
    """Start the processes of farms quickly; a test may set that back."""


@pytest.fixture(scope="session")
def tapes(tmp_path_factory) -> list[str]:
    """Eighteen tapes: four chunks of four, and one of two."""
    return save_tapes(tmp_path_factory.mktemp("farm"), 18)


@pytest.fixture(scope="session")
def expected(tapes):
    return plain_sum(tapes, CHUNK)


@pytest.fixture
def own(tapes, tmp_path) -> list[str]:
    """Copies of the tapes that a test may change."""
    return [str(shutil.copy2(path, tmp_path / Path(path).name)) for path in tapes]
