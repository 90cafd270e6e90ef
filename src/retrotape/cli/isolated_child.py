"""The program that holds a stranger's tape: imports first, then it is confined, then it reads the file.

It is started by its path, with nothing of the other process but the places of the packages; see `isolated/_launch.py`.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

_NOT_NEEDED = ("__main__", "cli")


def main() -> None:
    """Serve one tape: `python -I -S isolated_child.py SETUP`."""
    setup = json.loads(sys.argv[1])
    requests, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)  # whatever else is printed must not get between the messages
    os.close(nowhere)
    sys.path.extend(setup["paths"])
    import_everything()
    from retrotape.files import isolated

    note = None if setup["note"] is None else isolated.Note(setup["note"])
    asked = isolated.receive(requests, 2**20)
    set_threads(asked["threads"])
    path, memory, timeout = asked["path"], asked["memory"], asked["timeout"]
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the list of ops, and other tables
    confinement = isolated.confine(memory, timeout, lambda: [own, *files_of(path, asked["limits"])])
    run_an_op()
    isolated.send(results, {"number": asked["number"], "confinement": list(confinement)})

    def load(**options: Any) -> Any:
        return load_here(path, options)

    isolated.Server(isolated.Pipes(requests, results), load, note, memory, timeout).run()


def import_everything() -> None:
    """Import what may be needed: afterwards no file can be read."""
    import retrotape

    pending = [found for found in _inside(retrotape) if found.split(".")[1] not in _NOT_NEEDED]
    while pending:
        pending += _inside(import_module(pending.pop()))


def _inside(module: Any) -> list[str]:
    return [found.name for found in iter_modules(getattr(module, "__path__", ()), f"{module.__name__}.")]


def set_threads(numbers: list[int]) -> None:
    """Compute with as many threads as the other process: sums may depend on it."""
    from retrotape.tf.core import tf

    tf.config.threading.set_intra_op_parallelism_threads(numbers[0])
    tf.config.threading.set_inter_op_parallelism_threads(numbers[1])


def run_an_op() -> None:
    """Let TensorFlow start its threads now: what keeps it from doing so is not the fault of a query."""
    from retrotape.tf.core import tf

    tf.zeros([1]) + 1.0


def files_of(path: str, limits: dict[str, Any] | None) -> list[str]:
    """Return the files that a tape consists of. Where it cannot be read, loading says so."""
    from retrotape.errors import RetrotapeError
    from retrotape.files import store

    if not os.path.isdir(path):
        return [path]
    try:
        with store.open_tape(path, limits=limits_of(limits)) as container:
            return container.files()
    except (RetrotapeError, OSError):
        return [os.path.join(path, "tape.json")]


def load_here(path: str, options: dict[str, Any]) -> Any:
    """Return the tape. Options that are meant for this process alone are set here."""
    from retrotape.tape.loaded import load_here

    return load_here(path, isolated=True, limits=limits_of(options.pop("limits")), **options)


def limits_of(fields: dict[str, Any] | None) -> Any:
    """Return what to put up with, from the fields that were sent."""
    from retrotape.files import store

    return store.Limits() if fields is None else store.Limits(**fields)


if __name__ == "__main__":
    main()
