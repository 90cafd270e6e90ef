"""Reads hostile files one after the other, with 1 GiB of memory to do it in, and tells what came of each.

python tests/files/hostile_child.py FOLDER containers|texts VERBS

VERBS is how many verbs of the command line read each file: others for the next file, so that all get their turn.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MEMORY = 2**30
VERBS = (
    ["show"],
    ["show", "--ops"],
    ["check"],
    ["why", "y", "x"],
    ["grad", "y", "x"],
    ["nan"],
    ["diff"],
)


def files(family: str) -> Iterator[tuple[str, Callable[[Path], Path], Any]]:
    """Yield the name of each file, what builds it in a folder, and the limits to read it with."""
    from files.hostile_texts import BUILDERS
    from files.store.hostile import ATTACKS

    if family == "containers":
        yield from ((name, attack.build, attack.limits) for name, attack in ATTACKS.items())
    else:
        yield from (
            (name, lambda folder, build=build: build(folder / "a.tape"), None) for name, build in BUILDERS.items()
        )


def use(path: Path, limits: Any) -> list[str]:
    """Load a file and ask everything that gives text; return the texts."""
    import retrotape as rt

    tape = rt.load(path, limits=limits)
    texts = [repr(tape), repr(tape.variables), str(tape.program), str(tape.summary())]
    for ask in (
        lambda: tape.gradient("y", "x"),
        lambda: tape.why("y", "x"),
        lambda: tape.why("x", "y"),
        lambda: tape.backward("y"),
        tape.first_nonfinite,
        lambda: tape["nobody"],
        lambda: tape.replay({"x": [0.0, float("inf")]}).first_nonfinite(),
    ):
        try:
            texts.append(str(ask()))
        except rt.errors.RetrotapeError as error:
            texts.append(str(error))
    return texts


def attempt(path: Path, limits: Any) -> dict[str, Any]:
    """Return what comes of loading a file, in which time, and what is said of it."""
    from retrotape.errors import RetrotapeError

    begin = time.process_time()
    try:
        kind, texts = "fine", use(path, limits)
    except RetrotapeError as error:
        kind, texts = "refused", [str(error)]
    except BaseException as error:
        kind, texts = f"{type(error).__name__}: {str(error)[:300]}", []
    return {"kind": kind, "texts": texts, "seconds": time.process_time() - begin}


def command(path: Path, verb: list[str]) -> dict[str, Any]:
    """Return what a verb of the command line makes of it."""
    from click.testing import CliRunner

    from retrotape.cli import main

    begin = time.process_time()
    more = [str(path)] if verb[0] == "diff" else []
    found = CliRunner().invoke(main, [verb[0], str(path), *more, *verb[1:]], prog_name="retrotape")
    foreign = found.exception is not None and not isinstance(found.exception, SystemExit)
    return {
        "verb": " ".join(verb),
        "code": repr(found.exception) if foreign else found.exit_code,
        "out": found.stdout,
        "err": found.stderr,
        "seconds": time.process_time() - begin,
    }


def main() -> None:
    """Read all files of a family."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    folder, family, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    from files.hostile_texts import Hostile

    good = Hostile("").write(folder / "good.tape")
    assert attempt(good, None)["kind"] == "fine"  # and whatever is loaded late is loaded now
    assert [command(good, verb)["code"] for verb in VERBS] == [0] * len(VERBS)
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    for number, (name, build, limits) in enumerate(files(family)):
        place = folder / str(number)
        place.mkdir()
        path = build(place)
        verbs = [VERBS[(number * count + at) % len(VERBS)] for at in range(count)]
        told = {"name": name, **attempt(path, limits), "commands": [command(path, verb) for verb in verbs]}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
