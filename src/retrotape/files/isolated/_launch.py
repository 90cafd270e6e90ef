"""Starts the process of an isolated tape, which inherits only the import paths of the packages that it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType

import retrotape
from retrotape.errors import IsolationError
from retrotape.files.isolated._confinement import ARENAS

_HOME = os.path.dirname(os.path.abspath(retrotape.__file__))  # now: the current directory may change
_START = os.path.join(_HOME, "cli", "isolated_child.py")

# What retrotape and TensorFlow import. The other process imports these from the same folders as this one.
_NEEDED = (
    *(
        "retrotape",
        "tensorflow",
        "keras",
        "numpy",
        "absl",
        "astunparse",
        "certifi",
        "charset_normalizer",
        "flatbuffers",
    ),
    *("gast", "google.protobuf", "grpc", "h5py", "idna", "markdown_it", "mdurl", "ml_dtypes", "namex", "opt_einsum"),
    *("optree", "packaging", "pasta", "pygments", "requests", "rich", "setuptools", "six", "tensorboard", "termcolor"),
    *("typing_extensions", "urllib3", "wrapt"),
)
# Settings that change the bits of a result, or how many threads compute it.
_KEPT = ("TF_ENABLE_ONEDNN_OPTS", "TF_DETERMINISTIC_OPS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_SET = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "KERAS_HOME": os.path.join(os.devnull, "keras"),  # no settings are read, and none written
    "MALLOC_ARENA_MAX": str(ARENAS),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's threads would start before Landlock applies, and escape it
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def launch(note: int, errors: int) -> subprocess.Popen[bytes]:
    """Start the process.

    Args:
      note: The descriptor of the note that it writes to.
      errors: The descriptor for its stderr.
    """
    if not sys.executable:
        raise IsolationError(
            "No process can be started for the isolated tape: sys.executable does not give the path of Python",
            "Set it first, or load the file here, if you trust it: `rt.load(path)`",
        )
    posix = os.name == "posix"
    # The kernel tells a child of the end of the thread that started it, and only the main thread ends with the process.
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else None
    setup = {"paths": import_paths(), "note": note if posix else None, "parent": parent}
    return subprocess.Popen(
        # -I: no current directory, no PYTHON* variables, no user site; -S: no .pth files, no sitecustomize.
        [sys.executable, "-I", "-S", "-B", "-X", "utf8", _START, json.dumps(setup)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors if posix else subprocess.DEVNULL,
        env=environment(os.environ),
        cwd=os.path.abspath(os.sep),
        pass_fds=(note,) if posix else (),
        start_new_session=posix,  # Ctrl-C in the terminal is for this process alone
    )


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of the process."""
    kept = {name: given[name] for name in _KEPT if re.fullmatch(r"\w{0,16}", given.get(name, " "))}
    libraries = [path for path in given.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(path)]
    if libraries:  # without it, some builds of Python do not start; an empty part would be the current directory
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    if "SYSTEMROOT" in given:  # without it, Windows starts nothing
        kept["SYSTEMROOT"] = given["SYSTEMROOT"]
    return {**kept, **_SET}


def import_paths(modules: dict[str, ModuleType] = sys.modules, order: Sequence[str] | None = None) -> list[str]:
    """Return the folders that needed packages were imported from, in the order of `sys.path`."""
    places = {_place(name, modules[name]) for name in _NEEDED if name in modules}
    known = [os.path.abspath(path) for path in (sys.path if order is None else order) if os.path.isabs(path)]
    ordered = [*known, *sorted(place for place in places if place)]
    return [path for path in dict.fromkeys(ordered) if path in places and os.path.isdir(path)]


def _place(name: str, module: ModuleType) -> str:
    """Return the folder that a module was imported from; "" where it has none."""
    file = os.path.join(_HOME, "__init__.py") if name == "retrotape" else getattr(module, "__file__", None)
    if not file or not os.path.isabs(file):
        return ""
    depth = name.count(".") + (1 if hasattr(module, "__path__") else 0)
    place = os.path.dirname(file)
    for _ in range(depth):
        place = os.path.dirname(place)
    return place
