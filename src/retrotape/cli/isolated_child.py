"""The process of an isolated tape: it imports everything, is confined, and then reads the untrusted file.

It is started by path, and gets only the package directories from its parent; see `isolated/_launch.py`.
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
    os.dup2(nowhere, 1)  # other output must not mix with the messages
    os.close(nowhere)
    sys.path.extend(setup["paths"])
    import_everything()
    import retrotape
    from retrotape.files import isolated

    isolated.end_with(setup["parent"])
    retrotape.config(compile=False)  # op by op, so that the op is known during which the process dies
    note = None if setup["note"] is None else isolated.Note(setup["note"])
    asked = isolated.receive(requests, 2**20)
    set_threads(asked["threads"])
    path, memory, timeout = asked["path"], asked["memory"], asked["timeout"]
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # has the list of ops, and other tables
    confinement = isolated.confine(memory, timeout, lambda: [own, *files_of(path, asked["limits"])])
    run_an_op()
    isolated.send(results, {"number": asked["number"], "confinement": list(confinement)})

    def load(**options: Any) -> Any:
        return load_here(path, options)

    isolated.Server(isolated.Pipes(requests, results), load, note, memory, timeout).run()


def import_everything() -> None:
    """Import everything that may be needed: once confined, the process cannot read files."""
    import retrotape

    pending = [found for found in _inside(retrotape) if found.split(".")[1] not in _NOT_NEEDED]
    while pending:
        pending += _inside(import_module(pending.pop()))


def _inside(module: Any) -> list[str]:
    return [found.name for found in iter_modules(getattr(module, "__path__", ()), f"{module.__name__}.")]


def set_threads(numbers: list[int]) -> None:
    """Use as many threads as the parent: sums may depend on the number."""
    from retrotape.tf.core import tf

    tf.config.threading.set_intra_op_parallelism_threads(numbers[0])
    tf.config.threading.set_inter_op_parallelism_threads(numbers[1])


def run_an_op() -> None:
    """Make TensorFlow start its threads now, so that a failure to do so is not blamed on a query."""
    from retrotape.tf.core import tf

    tf.zeros([1]) + 1.0


def files_of(path: str, limits: dict[str, Any] | None) -> list[str]:
    """Return the files that a tape consists of. If it cannot be read, loading raises the error."""
    from retrotape.errors import RetrotapeError
    from retrotape.files import store

    if not os.path.isdir(path):
        return [path]
    try:
        if store.is_sharded(path):
            return store.files_of(path, limits_of(limits))
        with store.open_tape(path, limits=limits_of(limits)) as container:
            return container.files()
    except (RetrotapeError, OSError):
        return [os.path.join(path, "tape.json")]


def load_here(path: str, options: dict[str, Any]) -> Any:
    """Load the tape, with the options that apply only in this process."""
    from retrotape.tape.loaded import load_here

    return load_here(path, isolated=True, limits=limits_of(options.pop("limits")), **options)


def limits_of(fields: dict[str, Any] | None) -> Any:
    """Return the limits, given the fields that were sent."""
    from retrotape.files import store

    return store.Limits() if fields is None else store.Limits(**fields)


if __name__ == "__main__":
    main()
