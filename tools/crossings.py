"""Count the source files and the changes of folder that one query on a tiny tape passes through.

The program is `loss = tf.reduce_sum(tf.square(w))` with a scalar variable `w`, on a closed tape. Every query runs twice
on the same tape; the second run is measured, so that imports and caches do not count.

What is counted, in the thread of the caller:

- A **call** is every entry into a Python function written in a file of the package. Resuming a generator is an entry.
- A **file** counts once, however often it is entered.
- A **change of folder** is a call whose caller lies in another folder of the package. The caller is the innermost
  function of the package on the stack: frames of TensorFlow, of the standard library or of `io/` in between do not
  count, nor do returns. All files in the root of the package are one folder; a folder in a folder belongs to the
  outer one.

Run: `python tools/crossings.py`; `--trace why` shows the calls of one query, `--limits` fails above a limit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from _print import print_table

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# The most files and changes of folder that a query may take. They may go down, and not up.
LIMITS: dict[str, tuple[int, int] | None] = {
    "gradient": (17, 24),  # five files more than op by op: which structure it is, whether it is compiled
    "loaded-gradient": (35, 104),
    "why": (31, 60),
    "save": (35, 46),
    "load": (40, 65),
}


ATTRIBUTES = frozenset(("_view", "facts", "frames", "program"))  # of a trace: read like attributes, so not counted


class Call(NamedTuple):
    """One entry into a function of the package."""

    file: str  # relative to the package
    function: str
    depth: int  # the number of functions of the package below it on the stack
    changes_folder: bool

    def __str__(self) -> str:
        return f"{'*' if self.changes_folder else ' '} {'  ' * self.depth}{self.file}:{self.function}"


class Route(NamedTuple):
    """The calls of one query, in order."""

    calls: list[Call]

    @property
    def files(self) -> int:
        """The number of different files entered."""
        return len({call.file for call in self.calls})

    @property
    def changes(self) -> int:
        """The number of calls into another folder."""
        return sum(call.changes_folder for call in self.calls)


def folder_of(file: str) -> str:
    """Return the folder of the package that a file belongs to, "" for the root.

    >>> folder_of("ir/text/_print.py"), folder_of("tape.py")
    ('ir', '')
    """
    return Path(file).parts[0] if len(Path(file).parts) > 1 else ""


def trace(run: Callable[[], object], package: Path) -> Route:
    """Run a function and return the calls it makes into the files below `package`."""
    prefix = f"{package}{os.sep}"
    tools = os.path.join(prefix, "io", "")  # like the standard library, which it builds on
    calls: list[Call] = []

    def inside(frame: FrameType | None) -> list[str]:
        """Return the files of the package on the stack, innermost first."""
        files = []
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(prefix) and not name.startswith(tools):
                files.append(name.removeprefix(prefix))
            frame = frame.f_back
        return files

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if (
            event == "call"
            and name.startswith(prefix)
            and not name.startswith(tools)
            and frame.f_code.co_name not in ATTRIBUTES
        ):
            file, callers = name.removeprefix(prefix), inside(frame.f_back)
            changes_folder = bool(callers) and folder_of(callers[0]) != folder_of(file)
            calls.append(Call(file, frame.f_code.co_name, len(callers), changes_folder))

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        run()
    finally:
        sys.setprofile(before)
    return Route(calls)


def queries(folder: Path) -> dict[str, Callable[[], object]]:
    """Record the tiny program and return the queries on it by name."""
    import tensorflow as tf

    import retrotape as rt

    w = tf.Variable(3.0, name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.square(w))
    path = folder / "tape"
    tape.save(path, {"loss": loss})
    loaded = rt.load(path)
    return {
        "gradient": lambda: _op_by_op(lambda: tape.gradient(loss, w)),
        "loaded-gradient": lambda: _op_by_op(lambda: loaded.gradient("loss", "w")),
        "why": lambda: tape.why(loss, w),
        "save": lambda: tape.save(folder / "again", {"loss": loss}),
        "load": lambda: rt.load(path),
    }


def _op_by_op(run: Callable[[], object]) -> object:
    """Run a query that is not compiled."""
    import retrotape as rt

    with rt.config(compile=False):
        return run()


def measure() -> dict[str, Route]:
    """Return the route of each query through the retrotape that is installed."""
    import retrotape

    package = Path(retrotape.__file__).parent
    routes = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, query in queries(Path(folder)).items():
            query()
            routes[name] = trace(query, package)
    return routes


def above_limits(routes: Mapping[str, Route], limits: Mapping[str, tuple[int, int] | None]) -> list[str]:
    """Return a sentence for every figure above its limit."""
    found = []
    for name, route in routes.items():
        if limit := limits[name]:
            figures = [(route.files, limit[0], "files"), (route.changes, limit[1], "changes of folder")]
            found += [f"{name}: {value} {what}, limit {most}" for value, most, what in figures if value > most]
    return found


def as_json(routes: Mapping[str, Route]) -> dict[str, dict[str, int | None]]:
    """Return the figures and limits of each query as data."""
    found = {}
    for name, route in routes.items():
        files, changes = LIMITS[name] or (None, None)
        found[name] = {"files": route.files, "changes": route.changes, "files_limit": files, "changes_limit": changes}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--trace", metavar="QUERY", choices=LIMITS, help="print the calls of one query: a * marks a change of folder"
    )
    parser.add_argument("--limits", action="store_true", help="exit with 1 if a figure is above its limit")
    given = parser.parse_args()
    routes = measure()
    if given.trace:
        print(*routes[given.trace].calls, sep="\n")
    elif given.json:
        print(json.dumps(as_json(routes), indent=2))
    else:
        rows = [
            ["-" if value is None else value for value in (name, *row.values())]
            for name, row in as_json(routes).items()
        ]
        print_table(
            "From a query to its result", ["query", "files", "changes of folder", "limit of files", "of changes"], rows
        )
    failures = above_limits(routes, LIMITS) if given.limits else []
    if failures:
        print(*failures, "`python tools/crossings.py --trace QUERY` lists the calls.", sep="\n", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
