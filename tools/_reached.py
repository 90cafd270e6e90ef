"""Which tests reach which lines, and how long they take: measured once for each file of tests, and kept."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from coverage import CoverageData

# A process that the tests start says which test started it: pytest puts that into the environment.
_SETTINGS = """
[run]
data_file = {folder}/part
parallel = true
core = ctrace
context = ${{PYTEST_CURRENT_TEST-}}
include = {include}
disable_warnings = no-data-collected, no-ctracer, module-not-measured, trace-changed
"""
_PHASES = (" (setup)", " (call)", " (teardown)")


class Reaching(NamedTuple):
    """What one group of tests reached: a file with its coverage, and the seconds of the tests that passed."""

    data: Path
    seconds: dict[str, float]

    def tests(self, file: Path, lines: Collection[int]) -> Iterator[str]:
        """Yield the tests that passed and reached one of the lines of a file, or, without lines, any."""
        query = (
            "select context.context, numbits from line_bits"
            " join context on context.id = context_id join file on file.id = file_id where path = ?"
        )
        with closing(sqlite3.connect(self.data)) as database:
            for context, bits in database.execute(query, (str(file),)):
                test = context
                for phase in _PHASES:
                    test = test.removesuffix(phase)
                is_hit = any(line // 8 < len(bits) and bits[line // 8] >> line % 8 & 1 for line in lines)
                if test in self.seconds and (is_hit or not lines):
                    yield test


class Measured:
    """A folder of measurements.

    Args:
      folder: The folder.
      include: The patterns of the files whose lines matter.
    """

    def __init__(self, folder: Path, include: Iterable[str]) -> None:
        self._folder, self._include = folder, ", ".join(include)
        folder.mkdir(parents=True, exist_ok=True)

    def _name(self, group: Iterable[Path]) -> Path:
        """Return where the measurement of these files lies: elsewhere if one of them has changed."""
        content = hashlib.sha1(b"".join(str(path).encode() + path.read_bytes() for path in group))
        return self._folder / content.hexdigest()

    def of(self, group: Iterable[Path]) -> Reaching | None:
        """Return what a group has reached; None if that has not been measured."""
        name = self._name(group)
        told = name.with_suffix(".json")
        return Reaching(name.with_suffix(".db"), json.loads(told.read_text())) if told.exists() else None

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment in which a run measures into a folder."""
        settings = folder / "settings"
        settings.write_text(_SETTINGS.format(folder=folder, include=self._include))
        return {**os.environ, "COVERAGE_PROCESS_START": str(settings), "PYTEST_CURRENT_TEST": ""}

    def keep(self, group: Iterable[Path], folder: Path, seconds: dict[str, float]) -> None:
        """Keep what a run has measured into a folder."""
        name = self._name(group)
        whole = CoverageData(str(name.with_suffix(".db")))
        whole.erase()
        for part in sorted(folder.glob("part*")):
            data = CoverageData(str(part))
            data.read()
            whole.update(data)
        whole.write()
        whole.close()
        name.with_suffix(".json").write_text(json.dumps(seconds))
