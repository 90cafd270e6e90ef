"""Isolated tapes without the seconds that their processes take to start, where only the answers matter.

Their processes are forked from the server of `processes.py`, and confined as always; their environment and what they
have imported is not that of a process which the library starts. Tests of that have to do without these.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from helpers.processes import PYTHON
from retrotape.files.isolated import _launch, _process


def launch(note: int, errors: int) -> subprocess.Popen[bytes]:
    """Start the process as `_launch.launch` does."""
    return subprocess.Popen(
        [PYTHON, _launch._START, json.dumps({"paths": _launch.import_paths(), "note": note, "parent": None})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=os.path.abspath(os.sep),
        pass_fds=(note,),
        start_new_session=True,
    )


def quickly(patch: pytest.MonkeyPatch) -> None:
    """Let isolated tapes start so until the patch is undone; without a server, as users start them."""
    if sys.executable != PYTHON:
        patch.setattr(_process, "launch", launch)
