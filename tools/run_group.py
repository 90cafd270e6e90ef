"""Run a group of tests in this process, and write a line about each to a file: `run_tests.py` starts it."""

from __future__ import annotations

import json
import os
import resource
import sys
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest


def is_in_share(test: str, share: int, seed: str) -> bool:
    """Return whether a test is one of those, one in so many, that a seed chooses."""
    return zlib.crc32(f"{seed} {test}".encode()) % share == 0


class Storyteller:
    """A plugin of pytest: chooses a share of the tests, and tells what becomes of them."""

    def __init__(self, path: str, share: int, seed: str, chosen: Collection[str] | None = None) -> None:
        self._path, self._share, self._seed = Path(path), share, seed
        self._chosen = chosen
        self.has_failed = False

    def tell(self, **line: Any) -> None:
        """Write a line."""
        self.has_failed |= line.get("outcome") == "failed"
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what is not in the share."""
        is_in = [
            is_in_share(item.nodeid, self._share, self._seed) and (self._chosen is None or item.nodeid in self._chosen)
            for item in items
        ]
        config.hook.pytest_deselected(items=[item for item, chosen in zip(items, is_in, strict=True) if not chosen])
        items[:] = [item for item, chosen in zip(items, is_in, strict=True) if chosen]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which test runs: if the process dies, it died there."""
        self.tell(test=nodeid)
        if "COVERAGE_PROCESS_START" in os.environ:
            import coverage  # here: other environments have none

            measured = coverage.Coverage.current()
            assert measured is not None
            measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say how it ended."""
        if report.when == "call" or report.outcome != "passed":
            self.tell(test=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Say that a file cannot be imported, or is skipped."""
        if report.outcome != "passed":
            self.tell(test=report.nodeid, outcome=report.outcome)


def main() -> None:
    """Run them."""
    request = json.loads(sys.argv[1])
    if "bytes" in request:
        resource.setrlimit(resource.RLIMIT_DATA, (request["bytes"], request["bytes"]))
    chosen = set(Path(request["chosen"]).read_text().splitlines()) if "chosen" in request else None
    story = Storyteller(request["story"], request["share"], request["seed"], chosen)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take longer to import than most files to run
    options = ["-q", "--no-header", "-p", "no:cacheprovider", f"--basetemp={request['folder']}/tmp"]
    options += ["-x"] if chosen else []
    code = pytest.main([*request["paths"], *options, "-m", request["marked"], "-k", request["named"]], plugins=[story])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not story.has_failed:
        story.tell(test="pytest", outcome="failed")
    story.tell(megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


if __name__ == "__main__":
    main()
